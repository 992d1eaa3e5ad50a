"""Temporal difference learning of action values: double Q-learning with a moving average as target network."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from saccade.data.batching.batch import Batch
from saccade.model.model import Model
from saccade.train.average import Weights, swap_weights
from saccade.train.objectives.terms import Context, Objective, Term
from saccade_worlds.tables import TemporalDifference


def build_temporal_difference_objective(table: TemporalDifference, context: Context) -> Objective:
    """Build the objective from its table, with the moving average of the weights as target network."""
    settings = table.model_dump(exclude={"kind"})
    if context.average is not None:
        settings["target"] = context.average.weights
    return functools.partial(temporal_difference_loss, **settings)


def temporal_difference_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    target: Weights,
    discount: float = 0.9,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Huber loss between Q(s_t, a_t) and r_t + discount Q'(s_{t+1}, argmax_a Q(s_{t+1}, a)): double Q-learning.

    (van Hasselt et al. 2016, equation 4.) Q' is the model with the weights `target`, the moving average. The value
    after the last step of an episode is 0. The reported term `value` is the mean Q of the actions taken.
    """
    actions, turns = batch["action"], batch["turn"]
    with torch.no_grad(), swap_weights(model, target):  # first: the gradients of the other pass need its own weights
        target_values, _ = model.write(actions.ids, actions.mask, model.read(batch))
    values, _ = model.write(actions.ids, actions.mask, model.read(batch))
    target_values, values = target_values.float(), values.float()
    rewards, continues = turns.values.unbind(-1)
    best = values.detach().argmax(-1, keepdim=True)
    next_values = F.pad(target_values.gather(-1, best)[:, 1:, 0], (0, 1))
    chosen = values.gather(-1, (actions.ids - 1).clamp(min=0)[..., None])[..., 0]
    losses = F.huber_loss(chosen, rewards + discount * continues * next_values, reduction="none")
    count = turns.mask.sum()
    return {
        "temporal-difference": Term((losses * turns.mask).sum(), count, weight),
        "value": Term((chosen.detach() * turns.mask).sum(), count, 0.0),
    }
