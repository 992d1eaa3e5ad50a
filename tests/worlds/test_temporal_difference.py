"""The temporal-difference loss against values computed by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.train.objectives.objectives import build_objectives
from saccade_worlds.playing.episodes import StepOutcomes
from saccade_worlds.playing.objective import temporal_difference_loss

DISCOUNT = 0.5


class Table(nn.Module):
    """Action values from a table (B, T, A), which is the weights of the model."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))
        self.write = lambda ids, mask, memory: (self.values * 1, {})

    def read(self, batch):
        return None


def batch(actions, rewards):
    """An action without a reward marks an episode that was truncated before it."""
    done = pad(actions)
    turns, came = torch.zeros(*done.ids.shape, 2), torch.zeros_like(done.mask)
    for row, (chosen, given) in enumerate(zip(actions, rewards, strict=True)):
        turns[row, : len(given), 0] = torch.tensor(given)
        turns[row, : len(chosen) - 1, 1] = 1
        came[row, : len(given)] = True
    seen = Pictures(torch.zeros(1, 3, 2, 2), torch.ones(1, 1, dtype=torch.bool))
    return Batch({"source": seen, "action": done, "turn": StepOutcomes(turns, came)})


def test_the_model_chooses_and_the_average_judges():
    """Q(s_1, a_1) = 2; the model prefers action 2 at s_2, whose value in the target network is 6; r = 1."""
    model = Table([[[2.0, 0.0], [1.0, 3.0]]])
    slow = {"values": torch.tensor([[[9.0, 9.0], [8.0, 6.0]]])}
    terms = temporal_difference_loss(
        model, batch([[1, 1]], [[1.0, -0.5]]), torch.Generator(), target=slow, discount=DISCOUNT
    )
    first = 2.0 - (1.0 + DISCOUNT * 6.0)  # -2: beyond 1, Huber's loss is |x| - 1/2
    last = 1.0 + 0.5  # nothing comes after it
    assert terms["temporal-difference"].sum.item() == pytest.approx(abs(first) - 0.5 + last - 0.5)
    assert terms["temporal-difference"].count == 2
    assert terms["value"].sum.item() == pytest.approx(3.0) and terms["value"].weight == 0
    assert model.values[0, 0, 0] == 2.0  # the model has its own weights again


def test_a_truncated_episode_bootstraps_from_the_next_value():
    """r = 1; the target network's value of the preferred action after the truncation is 6."""
    model = Table([[[2.0, 0.0], [1.0, 3.0]]])
    slow = {"values": torch.tensor([[[9.0, 9.0], [8.0, 6.0]]])}
    terms = temporal_difference_loss(model, batch([[1, 0]], [[1.0]]), torch.Generator(), target=slow, discount=DISCOUNT)
    term = terms["temporal-difference"]
    assert term.sum.item() == pytest.approx(abs(2.0 - (1.0 + DISCOUNT * 6.0)) - 0.5) and term.count == 1
    term.sum.backward()
    assert model.values.grad.tolist() == [[[-1.0, 0.0], [0.0, 0.0]]]  # nothing was done behind the cut


def test_only_the_actions_taken_have_a_gradient():
    model = Table([[[0.5, 0.0], [0.25, 0.0]], [[0.0, 0.125], [5.0, 5.0]]])
    slow = {"values": torch.zeros(2, 2, 2)}
    terms = temporal_difference_loss(
        model, batch([[1, 1], [2]], [[0.0, 0.0], [1.0]]), torch.Generator(), target=slow, discount=DISCOUNT
    )
    terms["temporal-difference"].sum.backward()
    expected = [[[0.5, 0.0], [0.25, 0.0]], [[0.0, 0.125 - 1], [0.0, 0.0]]]  # a step that never was has none
    assert model.values.grad.tolist() == expected


def test_the_second_network_is_the_moving_average():
    weights = {"values": torch.tensor([[[0.0, 7.0]]])}
    recipe = load("show-attend-interact")
    [objective] = build_objectives(recipe, average=SimpleNamespace(weights=weights))
    assert objective.keywords["target"] is weights
    assert objective.keywords["discount"] == recipe.objectives[0].discount
