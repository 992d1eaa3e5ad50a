"""A source of batches that makes its own data: the model plays, what it played is kept, and batches are drawn of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from saccade.config.schema import PictureReader, Recipe
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import Rows
from saccade.data.store.streaming import Streamed
from saccade.data.worlds.episodes import Episode, Episodes, batch_of
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.predictors.playing import play
from saccade.train.batches.feed import Stream, StreamState
from saccade.train.distributed.ranks import Ranks


def stream_of(recipe: Recipe, rows: Rows | Streamed | Episodes, model: Model, ranks: Ranks) -> Stream:
    """The stream of batches of what was prepared."""
    settings = recipe.train
    if not isinstance(rows, Episodes):
        return rows.open_batches(
            batch_tokens=settings.batch_tokens, seed=settings.seed, rank=ranks.rank, world=ranks.world
        )
    if ranks.world > 1:
        raise SaccadeError(f'task = "interact" is learned by one process, got {ranks.world}; start it without torchrun')
    return Replay(recipe, rows, model)


class Replay:
    """An endless stream of batches of episodes, whose place can be saved and found again.

    Episodes are played whole, with the weights of that moment, and never again as long as they are kept: what was seen
    follows from the number of an episode and from what was done, so that these are all that a checkpoint needs.
    """

    def __init__(self, recipe: Recipe, episodes: Episodes, model: Model) -> None:
        assert isinstance(recipe.reader, PictureReader), "the recipe was checked"
        self._data, self._play, self._seed = recipe.data, recipe.data.play, recipe.train.seed
        self._states = recipe.reader.states or 1
        self._rows = max(1, recipe.train.batch_tokens // (self._states * recipe.data.max_length))
        self._episodes, self._model = episodes, model
        self._kept: deque[Episode] = deque()
        self._steps = 0  # of those that are kept
        self._played = self._taken = 0  # episodes and batches so far

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._taken % self._play.every == 0:
            self._go_and_play()
        rng = np.random.default_rng([self._seed, self._taken])
        self._taken += 1
        chosen = [self._kept[i] for i in rng.integers(len(self._kept), size=self._rows)]
        return batch_of(chosen, states=self._states)

    @property
    def epoch(self) -> float:
        """How often all that can be kept was played."""
        return self._played * self._data.max_length / self._data.buffer

    @property
    def explore(self) -> float:
        """The share of what is drawn: from all of it down to what stays, in a straight line."""
        gone = min(1.0, self._played / self._play.episodes)
        return 1.0 + gone * (self._play.explore - 1.0)

    def state(self) -> StreamState:
        """What was played and is kept, as JSON."""
        kept = tuple((episode.number, episode.actions) for episode in self._kept)
        return {"played": self._played, "taken": self._taken, "kept": kept}

    def restore(self, state: StreamState) -> None:
        """Goes to a place: what was done is done again."""
        self._played, self._taken = state["played"], state["taken"]
        self._kept.clear()
        self._steps = 0
        for number, actions in state["kept"]:
            self._keep(self._episodes.again(number, actions))

    def _go_and_play(self) -> None:
        numbers = range(self._played, self._played + self._play.together)
        training = self._model.training
        self._model.eval()
        played = play(self._model, self._episodes, numbers, states=self._states, explore=self.explore, seed=self._seed)
        self._model.train(training)
        self._played += len(played)
        for episode in played:
            self._keep(episode)

    def _keep(self, episode: Episode) -> None:
        self._kept.append(episode)
        self._steps += len(episode)
        while self._steps > self._data.buffer and len(self._kept) > 1:
            self._steps -= len(self._kept.popleft())
