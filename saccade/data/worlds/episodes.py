"""Episodes: what was seen in a world, what was done there, and what came of it; and how batches hold them.

A world is used as gymnasium's are: `reset(seed=...)` gives a picture and what else is told, `step(action)` the next
picture, the reward, whether it is over, whether it was cut off, and what else is told. Its `actions` have names.
B episodes, T steps.
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
from saccade.data.sources.pairs import PREFIX
from saccade.data.tokenization.labels import NONE
from saccade.data.worlds.greeting import Greeting
from saccade.data.worlds.gymnasium import GYMNASIUM, Foreign
from saccade.errors import SaccadeError

ARENAS: dict[str, Callable[[], World]] = {"greeting": Greeting}
HELD_OUT = 2**30  # the first number of episodes that no model learns from; those of users begin there
DIGITS = 9  # of the longest number that users give
TRIED = HELD_OUT + 10**DIGITS  # the first number of episodes by which the best step of a training is chosen
Box = tuple[float, float, float, float]  # top, left, bottom, right, as shares of the sides


class World(Protocol):
    """What `Episodes` needs of a world."""

    actions: tuple[str, ...]

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]: ...
    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]: ...


class Turns(Media):
    """What came of each action: values (B, T, 2), the reward, and 1 where something comes after it; mask (B, T)."""


@dataclass
class Episode:
    """One episode, as far as it has gone; a step has a picture, an action and a reward."""

    number: int  # the seed of the world
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)  # (3, high, wide)
    boxes: list[Box | None] = field(default_factory=list)  # where in each picture that is which matters, if it is told
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # what the model expected of each action
    looks: list[Any] = field(default_factory=list)  # what it looked at, where that was wanted
    over: bool = False
    cut: bool = False  # it was cut off: more would have come, and the last picture is that which nothing was done at
    success: bool = False

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def total(self) -> float:
        """The sum of all rewards."""
        return sum(self.rewards)


class Episodes:
    """Several episodes of one world at a time, each with a world of its own that is used again."""

    def __init__(self, corpus: Corpus, reader: PictureReader, *, longest: int) -> None:
        """`longest`: an episode is over after so many steps at the latest."""
        self.corpus, self._reader, self._longest = corpus, reader, longest
        self._worlds: list[World] = [opened(corpus.files[0])]
        self._current: list[Episode] = []

    @property
    def actions(self) -> tuple[str, ...]:
        return self._worlds[0].actions

    def begin(self, numbers: Sequence[int]) -> list[Episode]:
        """The first picture of each; those that were begun before are no longer to be gone on with."""
        while len(self._worlds) < len(numbers):
            self._worlds.append(opened(self.corpus.files[0]))
        self._current = [Episode(number) for number in numbers]
        for episode, world in zip(self._current, self._worlds, strict=False):
            self._see(episode, *world.reset(seed=episode.number))
        return self._current

    def act(self, which: int, action: int) -> None:
        """Goes on with one of them."""
        episode = self._current[which]
        seen, reward, over, cut, told = self._worlds[which].step(action)
        episode.actions.append(action)
        episode.rewards.append(float(reward))
        episode.cut = not over and (cut or len(episode) == self._longest)
        episode.over = over or episode.cut
        episode.success = bool(told["is_success"]) if "is_success" in told else episode.total > 0
        if not over:
            self._see(episode, seen, told)

    def again(self, number: int, actions: Sequence[int]) -> Episode:
        """An episode that was played before, from what was done in it."""
        [episode] = self.begin([number])
        for action in actions:
            if episode.over:
                break
            self.act(0, action)
        if not episode.over or len(episode) != len(actions):
            raise SaccadeError(
                f"{self.corpus.files[0]} does not do the same again for the same seed, so that the run cannot go on "
                "from what it had played; start a new run"
            )
        return episode

    def _see(self, episode: Episode, seen: NDArray[np.uint8], told: dict[str, Any]) -> None:
        high, wide = seen.shape[:2]
        box = told.get("matters")
        episode.boxes.append(box and (box[0] / high, box[1] / wide, box[2] / high, box[3] / wide))
        sides = self._reader.sides
        if (high, wide) != sides:
            seen = np.asarray(Image.fromarray(seen).resize(sides[::-1], Image.Resampling.BILINEAR))
        episode.pictures.append(np.ascontiguousarray(seen.transpose(2, 0, 1)))


def worlds_of(recipe: Recipe) -> tuple[Episodes, Episodes | None]:
    """Where a model learns, and where it is tried while it learns."""
    reader: Any = recipe.reader  # one of pictures: the recipe was checked
    if not recipe.data.train:
        raise SaccadeError("no world to learn in: give --data WORLD, set data.train, or try --tiny")
    corpora = (*recipe.data.train, *recipe.data.valid_corpora[:1])
    learn, *tried = (Episodes(corpus, reader, longest=recipe.data.max_length) for corpus in corpora)
    if tried and tried[0].actions != learn.actions:
        raise SaccadeError(
            f"both worlds must have the same actions, got {', '.join(learn.actions)} of {learn.corpus.files[0]} and "
            f"{', '.join(tried[0].actions)} of {tried[0].corpus.files[0]}"
        )
    return learn, tried[0] if tried else None


def opened(name: str) -> World:
    """The world of a name: `embedded:NAME`, or `gym:NAME` of gymnasium."""
    if name.startswith(GYMNASIUM):
        return Foreign(name.removeprefix(GYMNASIUM))
    arena = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or arena not in ARENAS:
        known = ", ".join(f"{PREFIX}{one}" for one in ARENAS)
        raise SaccadeError(
            f"there is no world {name!r}{did_you_mean(arena, [*ARENAS])} (known: {known}, and {GYMNASIUM}NAME of "
            "gymnasium)"
        )
    return ARENAS[arena]()


def batch_of(episodes: Sequence[Episode], *, states: int) -> Batch:
    """All pictures, one episode after the other, and for each picture (B, T) what was done and what came of it.

    An action has the number of its name plus 1, as labels have. An episode that was cut off has one more picture, at
    which nothing was done: what that is worth would have come after the last action.
    """
    done = pad([[action + 1 for action in episode.actions] + [NONE] * episode.cut for episode in episodes])
    turns, came = np.zeros((*done.ids.shape, 2), np.float32), torch.zeros_like(done.mask)
    for row, episode in enumerate(episodes):
        turns[row, : len(episode), 0] = episode.rewards
        turns[row, : len(episode.pictures) - 1, 1] = 1
        came[row, : len(episode)] = True
    pictures = np.stack([picture for episode in episodes for picture in episode.pictures])
    fields = {
        "source": pictures_of(pictures, states=states),
        "action": done,
        "turn": Turns(torch.from_numpy(turns), came),
    }
    return Batch(fields)


def pictures_of(pictures: NDArray[np.uint8], *, states: int) -> Pictures:
    return Pictures(torch.from_numpy(pictures), torch.ones(len(pictures), states, dtype=torch.bool))
