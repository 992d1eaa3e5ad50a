"""Check on acting: the model of the recipe show-attend-interact computes and learns what its papers describe."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear
from saccade.lectures.references.recurrent import predict_initial, step_with_attention
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.lectures.systems.captions import differentiate, encode_picture
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.average import MovingAverage
from saccade.train.objectives.objectives import build_objectives
from saccade_worlds.playing.episodes import Episode, VectorEnvironment, build_environments, collate_episodes
from saccade_worlds.playing.objective import temporal_difference_loss
from saccade_worlds.playing.play import play
from saccade_worlds.playing.replay import Replay
from saccade_worlds.playing.writer import ValuesWriter

SIDE, CELLS = 32, 16  # pixels and feature-map cells of a picture
DISCOUNT, DECAY = 0.9, 0.7
PARALLEL, ROWS, ROUNDS = 4, 8, 12  # episodes that are played in one round, episodes of a batch, rounds
BUFFER = 45  # steps; an episode has at most 10
SMALL = [
    "reader.channels=[4,6,8]", "writer.stack.dim=12",
    f"objectives=[{{kind='temporal-difference', discount={DISCOUNT}}}]", f"train.batch_tokens={ROWS * CELLS * 10}",
    f"data.buffer={BUFFER}", f"data.play.parallel_episodes={PARALLEL}", "data.play.batches_per_round=1",
    "data.play.epsilon_episodes=16",
]  # fmt: skip


class Trained(NamedTuple):
    """A small model, its moving average with other weights, and episodes that it has played."""

    recipe: Recipe
    world: VectorEnvironment
    model: Model
    average: MovingAverage
    target: Model  # a copy of the model whose weights should be those of the average
    played: list[Episode]


def prepare_episodes() -> Trained:
    recipe = load("show-attend-interact", tiny=True, overrides=SMALL)
    world, _ = build_environments(recipe)
    model = randomize_parameters(
        build(recipe, source_size=0, target_size=len(world.actions)).double().eval(), scale=0.5
    )
    average, before = MovingAverage(model, decay=DECAY), copy.deepcopy(model)
    randomize_parameters(model, scale=0.5)
    average.update(step=1000)
    target = copy.deepcopy(model)
    with torch.no_grad():
        for mean, first, own in zip(target.parameters(), before.parameters(), model.parameters(), strict=True):
            mean.copy_(DECAY * first + (1 - DECAY) * own)
    played = play(model, world, range(12), states=CELLS, epsilon=0.9, align=True)
    return Trained(recipe, world, model, average, target, played)


@check(
    32,
    "S3:409",
    "Show, attend and interact (Qureshi et al. 2017) maps pictures to a robot's actions with a recurrent Q-network.",
    formula=r"y_t = r_t + \gamma Q'(s_{t+1}, \mathrm{argmax}_a Q(s_{t+1}, a))",
    code=(ValuesWriter, temporal_difference_loss, Replay, MovingAverage),
    recipes=("show-attend-interact", "show-attend-interact-streams"),
    breaks=(
        "uniform-attention",
        "attention-without-gradient",
        "target-network-is-online",
        "moving-average-frozen",
        "future-without-value",
        "replay-of-the-last-round",
        "no-exploration",
        "first-picture-only",
        "picture-ignored",
    ),
)
def show_attend_interact() -> CheckResult:
    trained = prepare_episodes()
    model, played = trained.model, trained.played
    batch = collate_episodes(played, num_states=CELLS)
    done, real = batch["action"].ids, batch["action"].mask
    [objective] = build_objectives(trained.recipe, average=trained.average)
    loss = objective(model, batch, torch.Generator())["temporal-difference"]  # first: it exchanges the weights in place
    by_hand = [compute_values(model, episode) for episode in played]
    later = [compute_values(trained.target, episode)[0] for episode in played]
    at_steps = [tuple(part[: len(e)].float() for part in found) for found, e in zip(by_hand, played, strict=True)]
    steps = [torch.as_tensor(np.stack(episode.values)) for episode in played]
    attention = [torch.as_tensor(np.stack(episode.attention)) for episode in played]
    errors = [*map(compute_errors, played, [values for values, _ in by_hand], later)]
    expected = sum(float(error * error / 2 if abs(error) <= 1 else abs(error) - 0.5) for error in torch.cat(errors))
    chosen = [values[range(len(e)), e.actions] for (values, _), e in zip(by_hand, played, strict=True)]
    slope = (torch.cat(errors).clamp(-1, 1) * torch.cat(chosen)).sum()  # the target has no gradient
    v = model.writer.stack.recurrence.cross.score.energy.weight
    return build_result(
        expect_near(
            "Q-values of whole episodes: difference from the formulas",
            max_difference(model.writer(done, real, model.read(batch))[real], torch.cat([item for item, _ in by_hand])),
            0,
            within=1e-10,
        ),
        expect_near(
            "Q-values while playing: difference from the formulas",
            max_difference(torch.cat(steps), torch.cat([values for values, _ in at_steps])),
            0,
            within=1e-4,
        ),
        expect_near(
            "attention while playing: difference from the softmax over the cells of the current picture",
            max_difference(torch.cat(attention), torch.cat([weights for _, weights in at_steps])),
            0,
            within=1e-6,
        ),
        expect_near(
            "temporal-difference loss, expected double Q-learning with the average of the weights as Q'",
            float(loss.sum.detach()),
            expected,
            within=1e-3,
        ),
        expect_near(
            "its gradient with respect to v of the attention score: difference from that of the formula",
            max_difference(differentiate(loss.sum, v), differentiate(slope, v)),
            0,
            within=1e-3,
        ),
        *compare_replay(trained),
        note="`saccade train show-attend-interact --tiny` learns whom to greet, and how, in two minutes.",
    )


def compute_values(model: Model, episode: Episode) -> tuple[Tensor, Tensor]:
    """Action values (T, A) and attention weights (T, S) for the pictures of an episode, by the formulas of DARQN."""
    cells = encode_picture(model.reader, torch.from_numpy(np.stack(episode.pictures)))
    stack = model.writer.stack
    state = predict_initial("gru", stack, cells[:1].mean(1))
    values, weights = [], []
    for t in range(len(cells)):
        before = model.writer.embedding.weight[[episode.actions[t - 1] + 1 if t else 0]]
        found = step_with_attention("gru", stack.recurrence, before, cells[t : t + 1], None, state)
        values.append(apply_linear(model.writer.output, found[0])[0])
        weights.append(found[1][0])
    return torch.stack(values), torch.stack(weights)


@torch.no_grad()
def compute_errors(episode: Episode, values: Tensor, later: Tensor) -> Tensor:
    """Q(s_t, a_t) - r_t - γ Q'(s_{t+1}, argmax_a Q(s_{t+1}, a)) at each step of an episode."""
    errors = []
    for t, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        future = later[t + 1, values[t + 1].argmax()] if t + 1 < len(episode.pictures) else torch.zeros(())
        errors.append(values[t, action] - reward - DISCOUNT * future)
    return torch.stack(errors)


@torch.no_grad()
def compare_replay(trained: Trained) -> list[Comparison]:
    """Experience replay: batches mix episodes of several rounds, old ones leave a full buffer, exploration declines."""
    replay = Replay(trained.recipe, trained.world, trained.model)
    rates, batches, buffers = list[float](), list[Batch](), list[dict[int, list[int]]]()
    for _ in range(ROUNDS):
        rates.append(replay.epsilon)
        batches.append(next(replay))
        buffers.append(dict(replay.state()["kept"]))  # actions by seed
    lengths = {seed: len(actions) for buffer in buffers for seed, actions in buffer.items()}
    newest, steps = list[int](), 0
    for seed in sorted(lengths, reverse=True):
        steps += lengths[seed]
        newest += [seed] if steps <= BUFFER else []
    rounds = {seed // PARALLEL for seed in find_seeds(batches[-1], trained.world, range(ROUNDS * PARALLEL))}
    greedy = play(trained.model, trained.world, range(PARALLEL), states=CELLS)
    explored = sum(episode.actions != buffers[0][episode.seed] for episode in greedy)
    final = trained.recipe.data.play.final_epsilon  # type: ignore[attr-defined]  # of the task's own table
    return [
        expect_at_least("replay: rounds of play that the episodes of a batch come from", len(rounds), 2),
        expect_equal(
            f"replay: episodes in the buffer, expected the newest up to {BUFFER} steps",
            str(sorted(buffers[-1])),
            str(sorted(newest)),
        ),
        expect_near(
            "exploration: share of random actions after half of the episodes", rates[2], (1 + final) / 2, within=1e-9
        ),
        expect_at_least("exploration: actions that differ from the best one", count_random(trained.played), 1),
        expect_at_least("exploration: episodes of the first round with other actions than the best", explored, 1),
        expect_equal("without exploration: actions that differ from the best one", count_random(greedy), 0),
    ]


def find_seeds(batch: Batch, world: VectorEnvironment, seeds: Sequence[int]) -> list[int]:
    """The seeds of the episodes of a batch, by their first pictures."""
    first = {episode.pictures[0].tobytes(): episode.seed for episode in world.reset(seeds)}
    lengths = batch["action"].mask.sum(1)
    starts = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]))
    return [first[batch["source"].values[start].numpy().tobytes()] for start in starts.tolist()]


def count_random(played: Sequence[Episode]) -> int:
    return sum(
        int(np.argmax(values)) != action
        for episode in played
        for values, action in zip(episode.values, episode.actions, strict=True)
    )
