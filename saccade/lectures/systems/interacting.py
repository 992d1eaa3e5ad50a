"""The row about acting: what the recipe show-attend-interact builds does what its papers write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.worlds.episodes import Episode, batch_of, worlds_of
from saccade.lectures.claims import Measured, check, measured, near, same
from saccade.lectures.small import apart
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import named_weights
from saccade.model.writers.values import ValuesWriter
from saccade.predict.predictors.playing import play
from saccade.train.objectives.temporal_difference import temporal_difference

SMALL = ["reader.channels=[4,4,4]", "writer.stack.dim=12"]
DISCOUNT = 0.9
CELLS = 16  # of a picture


@check(
    32,
    "S3:409",
    "Show, attend, and interact (Qureshi et al. 2017): from a picture to a robot's actions.",
    formula=r"y_t = r_t + \gamma Q'(s_{t+1}, \mathrm{argmax}_a Q(s_{t+1}, a))",
    code=(ValuesWriter, temporal_difference),
)
@torch.no_grad()
def show_attend_interact() -> Measured:
    torch.manual_seed(1)
    recipe = load("show-attend-interact", tiny=True, overrides=SMALL)
    world, _ = worlds_of(recipe)
    model = build(recipe, source_size=0, target_size=len(world.actions)).double().eval()
    played = play(model, world, range(5), states=CELLS, explore=0.5, align=True)
    batch = batch_of(played, states=CELLS)
    done, real = batch["action"].ids, batch["action"].mask
    values = model.writer(done, real, model.read(batch))
    stepped = torch.stack([torch.as_tensor(row) for episode in played for row in episode.values]).double()
    looks = torch.stack([torch.as_tensor(look) for episode in played for look in episode.looks])
    term = temporal_difference(model, batch, torch.Generator(), target=named_weights(model), discount=DISCOUNT)
    return measured(
        near("values of whole episodes against step by step", apart(values[real], stepped), 0, within=1e-6),
        same("episodes of which the last values depend on the last picture", seen_last(model, played, values), 5),
        same("cells that each step looks at", looks.shape[1], CELLS),
        near("sum of these weights, farthest from 1", float((looks.sum(1) - 1).abs().max()) + 1, 1, within=1e-6),
        near(
            "loss against the sum over steps, one by one",
            float(term["temporal-difference"].sum),
            by_hand(played, values),
            within=1e-6,
        ),
        note="`saccade train show-attend-interact --tiny` learns whom to greet, and how, in two minutes.",
    )


def seen_last(model: Model, played: Sequence[Episode], values: Tensor) -> int:
    """How many episodes have other values in the end when the last picture is black."""
    dark = [replace(one, pictures=[*one.pictures[:-1], np.zeros_like(one.pictures[-1])]) for one in played]
    batch = batch_of(dark, states=CELLS)
    done, real = batch["action"].ids, batch["action"].mask
    changed = (model.writer(done, real, model.read(batch)) - values).abs().amax(-1) > 1e-9
    return int(sum(row[len(one) - 1] for row, one in zip(changed, played, strict=True)))


def by_hand(played: Sequence[Episode], values: Tensor) -> float:
    """The sum of Huber's loss over all steps; both networks have the same weights here."""
    total = 0.0
    for episode, rows in zip(played, values.tolist(), strict=True):
        for t, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
            later = max(rows[t + 1]) if t + 1 < len(episode) else 0.0
            missed = abs(rows[t][action] - reward - DISCOUNT * later)
            total += missed * missed / 2 if missed <= 1 else missed - 0.5
    return total
