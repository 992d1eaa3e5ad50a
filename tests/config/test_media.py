"""Compatible and incompatible settings of readers of images and audio."""

import pytest

from saccade.config.load import load
from saccade.errors import SaccadeError


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vit", "reader.size=30", r"reader: size must be a multiple of patch_size = 4, got 30"),
        ("vit", "reader.std=[0.2, 0.0, 0.2]", r"std must be above 0 for each color, got \[0.2, 0.0, 0.2\]"),
        (
            "listen-transformer",
            "reader.sound.pad_seconds=30",
            r"max_seconds must be at most pad_seconds = 30 seconds, got 60",
        ),
        (
            "show-attend-tell",
            "reader.size=100",
            r"reader: size must be a multiple of 16, as each of 4 levels halves it",
        ),
        ("vit", "reader.width=30", r"reader: width must be a multiple of patch_size = 4, got 30"),
        ("show-attend-tell", "reader.width=100", r"reader: width must be a multiple of 16, as each of 4"),
        ("show-attend-read", "reader.width=62", r"width must be a multiple of 4, as each of 2 levels"),
        (
            "show-attend-read",
            "reader.height_only_levels=4",
            r"height_only_levels must be at most the number of levels, 3, got 4",
        ),
        ("show-attend-tell", "writer.stack.attention=none", r'gate = true is for attention = "additive", got "none"'),
        ("bahdanau", "writer.stack.attention=around", r'"around" attends to the cells of a picture; set reader.kind'),
        (
            "show-attend-read",
            "writer.stack.hard_attention=true",
            r'hard_attention = true is for attention = "additive", got "around"',
        ),
        (
            "show-attend-tell",
            "reader.stack={kind='transformer', dim=64}",
            r"stack.dim must be that of the last level, 512",
        ),
        (
            "vit",
            "reader.stem=[8]",
            r"patch_size must be a power of 2, with 1 of them at most 2, got 4",
        ),
        (
            "show-attend-tell",
            "reader.attention_levels=[5]",
            r"attention_levels must be at most the number of levels, 4, got 5",
        ),
        (
            "vit",
            "reader.stack={residual='reversible', drop_path=0.1}",
            r"share_layers, drop_path, value_dim and other head projections; change drop_path",
        ),
        (
            "vit",
            "task=translate",
            r'task = "translate" reads texts, got a reader of pictures; set task = "media-to-text"',
        ),
        (
            "transformer",
            "task=media-to-text",
            r'task = "media-to-text" reads pictures or sound, got reader.kind = "tokens"',
        ),
        ("vit", "writer.kind=tags", r'a reader of pictures goes with writer.kind = "label" here, got "tags"'),
        ("show-attend-tell", "writer.kind=label", r'goes with writer.kind = "tokens" here, got "label"'),
        ("show-attend-tell", "writer.tie=all", r'has no token embeddings to share; set writer.tie = "output"'),
        ("show-attend-tell", "predict.replace_unknown=true", r"reads no words that could replace unknown ones"),
        ("show-attend-tell", "data.stream=true", r"stores them decoded on disk; set data.stream = false"),
        ("show-attend-tell", "tokenizer.shared=false", r"set tokenizer.shared = true"),
        ("show-attend-tell", "tokenizer.dropout=0.1", r"set tokenizer.dropout = 0"),
        ("classify", "objectives.0.mixup=0.5", r'mixup and cutmix of the objective "label" mix pictures'),
        ("transformer", "objectives.0.coverage=1.0", r'needs writer.stack.attention = "additive"'),
        ("vit", "reader.class_token=false", r'pooling = "first" would represent a picture by one corner of it; set'),
        ("vit", "writer.pooling=last", r'pooling = "last" would represent a picture by one corner of it; set'),
        ("cnn-self-attention", "writer.pooling=first", r'set writer.pooling = "mean", or "first" with reader.kind'),
        ("sutskever", "writer.stack.context_gate=true", r'gate = true is for attention = "additive", got "none"'),
    ],
)
def test_incompatible_settings_are_reported(name, change, message):
    with pytest.raises(SaccadeError, match=message):
        load(name, overrides=[change])


def test_states_of_a_picture_follow_from_its_size():
    assert (load("vit").reader.grid, load("vit").reader.states) == ((8, 8), 65)
    assert load("vit", overrides=["reader.class_token=false", "writer.pooling=mean"]).reader.states == 64
    assert (load("show-attend-tell").reader.grid, load("show-attend-tell").reader.states) == ((8, 8), 64)
    assert (load("show-attend-read").reader.grid, load("show-attend-read").reader.states) == ((6, 40), 240)
