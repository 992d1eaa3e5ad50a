"""What goes with readers of pictures, and what is refused in one line."""

import pytest

from saccade.config.load import load
from saccade.errors import SaccadeError


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vit", "reader.size=30", r"reader: size must be a multiple of patch = 4, got 30"),
        (
            "show-attend-tell",
            "reader.size=100",
            r"reader: size must be a multiple of 16, as each of 4 levels halves it",
        ),
        (
            "show-attend-tell",
            "reader.stack={kind='transformer', dim=64}",
            r"stack.dim must be that of the last level, 512",
        ),
        ("vit", "task=translate", r'task = "translate" reads texts, got a reader of pictures; set task = "describe"'),
        ("transformer", "task=describe", r'task = "describe" reads pictures or sound, got reader.kind = "tokens"'),
        ("vit", "writer.kind=tags", r'a reader of pictures goes with writer.kind = "label" here, got "tags"'),
        ("show-attend-tell", "writer.kind=label", r'goes with writer.kind = "tokens" here, got "label"'),
        ("show-attend-tell", "writer.tie=all", r'has no token vectors to share; set writer.tie = "output"'),
        ("show-attend-tell", "predict.replace_unknown=true", r"reads no words that could replace unknown ones"),
        ("show-attend-tell", "data.stream=true", r"keeps them decoded on the disk; set data.stream = false"),
        ("show-attend-tell", "tokenizer.shared=false", r"set tokenizer.shared = true"),
        ("show-attend-tell", "tokenizer.dropout=0.1", r"set tokenizer.dropout = 0"),
        ("classify", "objectives.0.mixup=0.5", r'mixup and cutmix of the objective "label" mix pictures'),
        ("transformer", "objectives.0.coverage=1.0", r'needs writer.stack.attention = "additive"'),
        ("sutskever", "writer.stack.gate=true", r'gate = true is for attention = "additive", got "none"'),
    ],
)
def test_what_does_not_go_together_is_told(name, change, message):
    with pytest.raises(SaccadeError, match=message):
        load(name, overrides=[change])


def test_states_of_a_picture_follow_from_its_size():
    assert (load("vit").reader.grid, load("vit").reader.states) == (8, 65)
    assert load("vit", overrides=["reader.first=false"]).reader.states == 64
    assert (load("show-attend-tell").reader.grid, load("show-attend-tell").reader.states) == (8, 64)
