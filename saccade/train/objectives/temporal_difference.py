"""The objective of action values: what a step brings, and what the steps after it are worth."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from saccade.config import schema
from saccade.data.batching.batch import Batch
from saccade.model.model import Model
from saccade.train.average import Weights, wearing
from saccade.train.objectives.terms import Context, Objective, Term


def build_temporal_difference(table: schema.TemporalDifference, context: Context) -> Objective:
    """The objective of a recipe, whose second network is the moving average of the weights."""
    settings = table.model_dump(exclude={"kind"})
    if context.average is not None:
        settings["target"] = context.average.weights
    return functools.partial(temporal_difference, **settings)


def temporal_difference(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    target: Weights,
    discount: float = 0.9,
    weight: float = 1.0,
) -> dict[str, Term]:
    """How far Q(s_t, a_t) is from r_t + discount Q'(s_{t+1}, argmax_a Q(s_{t+1}, a)): double Q-learning.

    (van Hasselt et al. 2016, equation 4, with the loss of Huber.) Q' is the model with the weights `target`: the moving
    average. Nothing comes after the last step of an episode, unless it was cut off there. `value` is what the model
    expects of what it did.
    """
    done, turns = batch["action"], batch["turn"]
    with torch.no_grad(), wearing(model, target):  # before the other pass: its gradients need the weights as they are
        slow, _ = model.write(done.ids, done.mask, model.read(batch))
    values, _ = model.write(done.ids, done.mask, model.read(batch))
    slow, values = slow.float(), values.float()
    reward, goes_on = turns.values.unbind(-1)
    best = values.detach().argmax(-1, keepdim=True)
    later = F.pad(slow.gather(-1, best)[:, 1:, 0], (0, 1))  # behind the last picture there is nothing
    chosen = values.gather(-1, (done.ids - 1).clamp(min=0)[..., None])[..., 0]
    missed = F.huber_loss(chosen, reward + discount * goes_on * later, reduction="none")
    count = turns.mask.sum()
    return {
        "temporal-difference": Term((missed * turns.mask).sum(), count, weight),
        "value": Term((chosen.detach() * turns.mask).sum(), count, 0.0),
    }
