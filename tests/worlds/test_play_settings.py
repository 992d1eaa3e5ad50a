"""Compatible and incompatible settings of the task "play"."""

import pytest

from saccade.config.load import load
from saccade.errors import SaccadeError

NAME = "show-attend-interact"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["reader={ kind = 'tokens', positions = { kind = 'none' } }"], 'reads pictures, got reader.kind = "tokens"'),
        (["reader={ kind = 'frames' }"], 'reads pictures, got reader.kind = "frames"'),
        (["writer={ kind = 'label' }"], 'goes with writer.kind = "values", got "label"'),
        (
            ["writer.stack.hard_attention=true"],
            'hard_attention = true samples attention, which task = "play" does not train',
        ),
        (["train.ema=0.0"], "needs a target network, which is the moving average; set train.ema = 0.99"),
        (["train.metric=bleu"], 'train.metric = "bleu" does not measure episodes; it is one of loss, success'),
        (["train.epochs=3"], "plays its own data, so that there are no epochs; set train.steps"),
        (
            ["data.train=[['embedded:greeting'], ['embedded:greeting']]"],
            "plays in one world, got several in data.train",
        ),
        (["data.valid=[['embedded:greeting', 'embedded:greeting']]"], "plays in one world, got several in data.valid"),
        (["data.valid=0.1"], "cannot hold a share of the episodes out; name a world in data.valid"),
        (["objectives=[{ kind = 'label' }]"], 'cannot be trained by the objective "label"; use "temporal-difference"'),
        (["task=classify"], 'goes with writer.kind = "label" here, got "values"'),
    ],
)
def test_incompatible_settings_are_reported(changes, message):
    with pytest.raises(SaccadeError, match=message):
        load(NAME, overrides=changes)
