"""Episodes of environments for reinforcement learning, and their batches.

Environments have the interface of gymnasium: `reset(seed=...)` returns an observation (a picture) and info,
`step(action)` returns the next observation, reward, terminated, truncated and info. Their `actions` have names. B
episodes, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from saccade.config.schema import Corpus, PictureReader, Recipe
from saccade.data.batching.batch import Batch, Media, Pictures, pad
from saccade.data.sources.lines import did_you_mean
from saccade.data.sources.pairs import EMBEDDED_PREFIX
from saccade.data.tokenization.labels import NO_CLASS
from saccade.errors import SaccadeError
from saccade_worlds.playing.greeting import Greeting
from saccade_worlds.playing.gymnasium import GYMNASIUM_PREFIX, GymnasiumEnvironment
from saccade_worlds.playing.waiting_room import WaitingRoom
from saccade_worlds.tables import ValuesWriter

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {"greeting": Greeting, "waiting-room": WaitingRoom}
FIRST_HELDOUT_SEED = 2**30  # seeds from here on are not trained on; those that users give start here
MAX_SEED_DIGITS = 9  # of seeds that users give
FIRST_VALIDATION_SEED = FIRST_HELDOUT_SEED + 10**MAX_SEED_DIGITS  # seeds for validation during training
Box = tuple[float, float, float, float]  # top, left, bottom, right, as fractions of the sides


class Environment(Protocol):
    """Interface of an environment, that of gymnasium with names of the actions."""

    actions: tuple[str, ...]

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]: ...
    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]: ...


class StepOutcomes(Media):
    """Outcome of each action: values (B, T, 2) are the reward, and 1 if another observation follows; mask (B, T)."""


@dataclass
class Episode:
    """An episode so far; a step has a picture, an action and a reward."""

    seed: int  # of the environment
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)  # (3 or 4, height, width): colors, depth
    # the relevant part of each picture, if the environment tells it
    boxes: list[Box | None] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # action values estimated by the model
    attention: list[Any] = field(default_factory=list)  # attention weights (S,), or (N, S) of N streams, if recorded
    done: bool = False
    truncated: bool = False  # ended by the step limit; it has one more picture, at which no action was taken
    success: bool = False

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        """Sum of all rewards (undiscounted return)."""
        return sum(self.rewards)


class VectorEnvironment:
    """Runs several episodes of one environment side by side; each has its own instance, which is reused."""

    def __init__(self, corpus: Corpus, reader: PictureReader, *, max_steps: int, depth: bool = False) -> None:
        """`max_steps`: an episode is truncated after this number of steps; `depth` keeps the depth of observations."""
        self.corpus, self._reader, self._max_steps = corpus, reader, max_steps
        self._channels = 4 if depth else 3
        self._environments: list[Environment] = [make_environment(corpus.files[0])]
        self._episodes: list[Episode] = []

    @property
    def actions(self) -> tuple[str, ...]:
        return self._environments[0].actions

    def reset(self, seeds: Sequence[int]) -> list[Episode]:
        """Start an episode for each seed, with its first picture; earlier episodes are abandoned."""
        while len(self._environments) < len(seeds):
            self._environments.append(make_environment(self.corpus.files[0]))
        self._episodes = [Episode(number) for number in seeds]
        for episode, world in zip(self._episodes, self._environments, strict=False):
            self._record_observation(episode, *world.reset(seed=episode.seed))
        return self._episodes

    def step(self, index: int, action: int) -> None:
        """Take an action in one of the episodes."""
        episode = self._episodes[index]
        observation, reward, terminated, truncated, info = self._environments[index].step(action)
        episode.actions.append(action)
        episode.rewards.append(float(reward))
        episode.truncated = not terminated and (truncated or len(episode) == self._max_steps)
        episode.done = terminated or episode.truncated
        episode.success = bool(info["is_success"]) if "is_success" in info else episode.total_reward > 0
        if not terminated:
            self._record_observation(episode, observation, info)

    def replay(self, seed: int, actions: Sequence[int]) -> Episode:
        """Repeat an earlier episode from its seed and actions."""
        [episode] = self.reset([seed])
        for action in actions:
            if episode.done:
                break
            self.step(0, action)
        if not episode.done or len(episode) != len(actions):
            raise SaccadeError(
                f"{self.corpus.files[0]} is not deterministic for a given seed, so that the episodes of the run cannot "
                "be replayed; start a new run"
            )
        return episode

    def _record_observation(self, episode: Episode, observation: NDArray[np.uint8], info: dict[str, Any]) -> None:
        height, width = observation.shape[:2]
        box = info.get("matters")
        episode.boxes.append(box and (box[0] / height, box[1] / width, box[2] / height, box[3] / width))
        channels = observation.transpose(2, 0, 1)[: self._channels]
        sides = self._reader.image_shape
        if (height, width) != sides:
            channels = np.stack([resize_channel(channel, sides) for channel in channels])
        episode.pictures.append(np.ascontiguousarray(channels))


def resize_channel(channel: NDArray[np.uint8], sides: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(channel).resize(sides[::-1], Image.Resampling.BILINEAR))


def build_environments(recipe: Recipe) -> tuple[VectorEnvironment, VectorEnvironment | None]:
    """Build the environments for training and validation; the latter is None without data.valid."""
    if not recipe.data.train:
        raise SaccadeError("no environment to train in: give --data WORLD, set data.train, or try --tiny")
    corpora = (*recipe.data.train, *recipe.data.valid_corpora[:1])
    train, *valid = (build_environment(corpus, recipe) for corpus in corpora)
    if valid and valid[0].actions != train.actions:
        raise SaccadeError(
            f"both environments must have the same actions, got {', '.join(train.actions)} of {train.corpus.files[0]} "
            f"and {', '.join(valid[0].actions)} of {valid[0].corpus.files[0]}"
        )
    return train, valid[0] if valid else None


def build_environment(corpus: Corpus, recipe: Recipe) -> VectorEnvironment:
    """Build the environment of a corpus for the reader and the streams of a recipe."""
    reader: Any = recipe.reader  # of pictures: the recipe is validated
    writer: Any = recipe.writer  # of any kind, one of a plugin too
    depth = isinstance(writer, ValuesWriter) and "depth" in writer.streams
    return VectorEnvironment(corpus, reader, max_steps=recipe.data.max_length, depth=depth)


def make_environment(name: str) -> Environment:
    """Create an environment by name: `embedded:NAME`, or `gym:NAME` of gymnasium."""
    if name.startswith(GYMNASIUM_PREFIX):
        return GymnasiumEnvironment(name.removeprefix(GYMNASIUM_PREFIX))
    arena = name.removeprefix(EMBEDDED_PREFIX)
    if not name.startswith(EMBEDDED_PREFIX) or arena not in ENVIRONMENTS:
        known = ", ".join(f"{EMBEDDED_PREFIX}{one}" for one in ENVIRONMENTS)
        raise SaccadeError(
            f"there is no environment {name!r}{did_you_mean(arena, [*ENVIRONMENTS])} (known: {known}, and "
            f"{GYMNASIUM_PREFIX}NAME of gymnasium)"
        )
    return ENVIRONMENTS[arena]()


def collate_episodes(episodes: Sequence[Episode], *, num_states: int) -> Batch:
    """Collate episodes: all pictures, concatenated, and for each picture (B, T) the action and its outcome.

    An action is the index of its name plus 1, as for labels. A truncated episode has one more picture without an
    action, whose value is that of the steps that are missing.
    """
    actions = pad([[action + 1 for action in episode.actions] + [NO_CLASS] * episode.truncated for episode in episodes])
    outcomes, mask = np.zeros((*actions.ids.shape, 2), np.float32), torch.zeros_like(actions.mask)
    for row, episode in enumerate(episodes):
        outcomes[row, : len(episode), 0] = episode.rewards
        outcomes[row, : len(episode.pictures) - 1, 1] = 1
        mask[row, : len(episode)] = True
    pictures = np.stack([picture for episode in episodes for picture in episode.pictures])
    fields = {
        "source": to_pictures(pictures, num_states=num_states),
        "action": actions,
        "turn": StepOutcomes(torch.from_numpy(outcomes), mask),
    }
    return Batch(fields)


def to_pictures(pictures: NDArray[np.uint8], *, num_states: int) -> Pictures:
    return Pictures(torch.from_numpy(pictures), torch.ones(len(pictures), num_states, dtype=torch.bool))
