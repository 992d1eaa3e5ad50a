"""Check on acting: the model of the recipe show-attend-interact computes what its papers describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal, expect_near
from saccade.lectures.small import max_difference
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import named_weights
from saccade_worlds.playing.episodes import Episode, build_environments, collate_episodes
from saccade_worlds.playing.objective import temporal_difference_loss
from saccade_worlds.playing.play import play
from saccade_worlds.playing.writer import ValuesWriter

SMALL = ["reader.channels=[4,4,4]", "writer.stack.dim=12"]
DISCOUNT = 0.9
CELLS = 16  # feature-map cells of a picture


@check(
    32,
    "S3:409",
    "Show, attend and interact (Qureshi et al. 2017) maps pictures to a robot's actions with a recurrent Q-network.",
    formula=r"y_t = r_t + \gamma Q'(s_{t+1}, \mathrm{argmax}_a Q(s_{t+1}, a))",
    code=(ValuesWriter, temporal_difference_loss),
)
@torch.no_grad()
def show_attend_interact() -> CheckResult:
    torch.manual_seed(1)
    recipe = load("show-attend-interact", tiny=True, overrides=SMALL)
    world, _ = build_environments(recipe)
    model = build(recipe, source_size=0, target_size=len(world.actions)).double().eval()
    played = play(model, world, range(5), states=CELLS, epsilon=0.5, align=True)
    batch = collate_episodes(played, num_states=CELLS)
    done, real = batch["action"].ids, batch["action"].mask
    values = model.writer(done, real, model.read(batch))
    stepped = torch.stack([torch.as_tensor(row) for episode in played for row in episode.values]).double()
    weights = torch.stack([torch.as_tensor(row) for episode in played for row in episode.attention])
    term = temporal_difference_loss(model, batch, torch.Generator(), target=named_weights(model), discount=DISCOUNT)
    return build_result(
        expect_near(
            "Q-values of whole episodes: difference from step by step",
            max_difference(values[real], stepped),
            0,
            within=1e-6,
        ),
        expect_equal(
            "episodes of 5 whose last Q-values depend on the last picture",
            count_dependent_episodes(model, played, values),
            5,
        ),
        expect_equal("cells that each step attends to", weights.shape[1], CELLS),
        expect_near(
            "sum of these weights, the one farthest from 1", float((weights.sum(1) - 1).abs().max()) + 1, 1, within=1e-6
        ),
        expect_near(
            "temporal-difference loss, expected the sum over single steps",
            float(term["temporal-difference"].sum),
            compute_loss(played, values),
            within=1e-6,
        ),
        note="`saccade train show-attend-interact --tiny` learns whom to greet, and how, in two minutes.",
    )


def count_dependent_episodes(model: Model, played: Sequence[Episode], values: Tensor) -> int:
    """Count the episodes whose last Q-values change when the last picture is black."""
    dark = [replace(one, pictures=[*one.pictures[:-1], np.zeros_like(one.pictures[-1])]) for one in played]
    batch = collate_episodes(dark, num_states=CELLS)
    done, real = batch["action"].ids, batch["action"].mask
    changed = (model.writer(done, real, model.read(batch)) - values).abs().amax(-1) > 1e-9
    return int(sum(row[len(one) - 1] for row, one in zip(changed, played, strict=True)))


def compute_loss(played: Sequence[Episode], values: Tensor) -> float:
    """Sum the Huber loss over all steps; online and target network have the same weights here."""
    total = 0.0
    for episode, rows in zip(played, values.tolist(), strict=True):
        for t, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
            later = max(rows[t + 1]) if t + 1 < len(episode) else 0.0
            missed = abs(rows[t][action] - reward - DISCOUNT * later)
            total += missed * missed / 2 if missed <= 1 else missed - 0.5
    return total
