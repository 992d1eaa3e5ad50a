import pytest
import torch
from torch import nn

from saccade.config.schema import Average
from saccade.train import checkpoint
from saccade.train.average import MovingAverage, average_checkpoints, select_steps, swap_weights
from saccade.train.checkpoint import Checkpoint


def build_filled_layer(value):
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, value), nn.init.constant_(layer.bias, value)
    return layer


def test_moving_average_by_hand():
    layer = build_filled_layer(0.0)
    average = MovingAverage(layer, decay=0.5)

    for step, value in ((7, 1.0), (8, 2.0)):  # (1 + 7) / (10 + 7) < 0.5 at first, then 0.5
        nn.init.constant_(layer.weight, value)
        average.update(step=step)

    first = 1 - 8 / 17
    expected = first + (1 - 0.5) * (2 - first)
    torch.testing.assert_close(average.weights["weight"], torch.full((2, 3), expected))
    torch.testing.assert_close(average.weights["bias"], torch.zeros(2))


def test_swapped_weights_are_restored():
    layer = build_filled_layer(1.0)

    with swap_weights(layer, {"weight": torch.full((2, 3), 7.0), "bias": torch.zeros(2)}):
        assert layer.weight[0, 0] == 7.0

    assert layer.weight[0, 0] == 1.0 and layer.bias[0] == 1.0


def test_mean_of_checkpoints(tmp_path):
    for step, value in ((1, 1.0), (2, 2.0), (5, 6.0)):
        checkpoint.save(tmp_path, step=step, groups={"model": {"w": torch.full((2,), value)}}, state={})
    found = [Checkpoint(path := tmp_path / f"step-{step}", checkpoint.read_verified_state(path)) for step in (1, 2, 5)]

    mean = average_checkpoints(found, group="model")

    assert mean["w"].tolist() == [3.0, 3.0] and mean["w"].dtype == torch.float32


@pytest.mark.parametrize(
    ("kind", "lower", "expected"),
    [("none", True, []), ("last", True, [9, 7]), ("best", True, [7, 3]), ("best", False, [5, 3])],
)
def test_steps_to_average(kind, lower, expected):
    ranking = {1: 0.1, 3: 2.0, 5: 4.0, 7: 1.0}  # step 1 has no checkpoint any more, 9 was not validated

    assert select_steps(Average(kind=kind, n=2), saved=[9, 7, 5, 3], ranking=ranking, lower_is_better=lower) == expected
