"""What goes together in recipes that act."""

import pytest

from saccade.config.load import load
from saccade.errors import SaccadeError

NAME = "show-attend-interact"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["reader={ kind = 'tokens', positions = { kind = 'none' } }"], 'sees pictures, got reader.kind = "tokens"'),
        (["reader={ kind = 'frames' }"], 'sees pictures, got reader.kind = "frames"'),
        (["writer={ kind = 'label' }"], 'goes with writer.kind = "values", got "label"'),
        (["writer.stack.hard=true"], 'hard = true draws where to look, which task = "interact" does not learn'),
        (["train.ema=0.0"], "needs a second network, which is the moving average; set train.ema = 0.99"),
        (["train.metric=bleu"], 'train.metric = "bleu" is not of what is done; it is one of loss, success'),
        (["train.epochs=3"], "makes its own data, so that there are no epochs; set train.steps"),
        (
            ["data.train=[['embedded:greeting'], ['embedded:greeting']]"],
            "plays in one world, got several in data.train",
        ),
        (["data.valid=[['embedded:greeting', 'embedded:greeting']]"], "plays in one world, got several in data.valid"),
        (["data.valid=0.1"], "none are held out by a share; name a world in data.valid"),
        (["objectives=[{ kind = 'label' }]"], 'cannot learn by the objective "label"; take "temporal-difference"'),
        (["task=label"], 'goes with writer.kind = "label" here, got "values"'),
    ],
)
def test_what_does_not_go_together_is_told(changes, message):
    with pytest.raises(SaccadeError, match=message):
        load(NAME, overrides=changes)
