"""Experience replay: the model plays episodes into a buffer, and batches are sampled from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from saccade.config.schema import PictureReader, Recipe
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import Rows
from saccade.data.store.streaming import DocumentStream
from saccade.data.worlds.episodes import Episode, VectorEnvironment, collate_episodes
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.predict.predictors.playing import play
from saccade.train.batches.prefetch import Stream, StreamState
from saccade.train.distributed.ranks import Ranks


def open_stream(recipe: Recipe, rows: Rows | DocumentStream | VectorEnvironment, model: Model, ranks: Ranks) -> Stream:
    """Open the stream of training batches of the prepared data, or of episodes that the model plays."""
    settings = recipe.train
    if not isinstance(rows, VectorEnvironment):
        return rows.open_batches(
            batch_tokens=settings.batch_tokens, seed=settings.seed, rank=ranks.rank, world=ranks.world_size
        )
    if ranks.world_size > 1:
        raise SaccadeError(f'task = "play" trains in one process, got {ranks.world_size}; start it without torchrun')
    return Replay(recipe, rows, model)


class Replay:
    """A replay buffer as an endless stream of batches of episodes, whose position can be saved and restored.

    Episodes are played with the current weights and kept until the buffer is full. Environments are deterministic: the
    seed and the actions of an episode reproduce it, and are all that a checkpoint stores.
    """

    depends_on_weights = True

    def __init__(self, recipe: Recipe, episodes: VectorEnvironment, model: Model) -> None:
        assert isinstance(recipe.reader, PictureReader), "the recipe was checked"
        self._data, self._play, self._seed = recipe.data, recipe.data.play, recipe.train.seed
        self._states = recipe.reader.states or 1
        self._rows = max(1, recipe.train.batch_tokens // (self._states * recipe.data.max_length))
        self._episodes, self._model = episodes, model
        self._buffer: deque[Episode] = deque()
        self._steps = 0  # of all episodes in the buffer
        self._episodes_played = self._batches_sampled = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._batches_sampled % self._play.batches_per_round == 0:
            self._play_episodes()
        rng = np.random.default_rng([self._seed, self._batches_sampled])
        self._batches_sampled += 1
        chosen = [self._buffer[i] for i in rng.integers(len(self._buffer), size=self._rows)]
        return collate_episodes(chosen, num_states=self._states)

    @property
    def epoch(self) -> float:
        """Steps played so far, in units of the buffer's capacity."""
        return self._episodes_played * self._data.max_length / self._data.buffer

    @property
    def epsilon(self) -> float:
        """Share of random actions (epsilon-greedy): falls linearly from 1 to `final_epsilon`."""
        progress = min(1.0, self._episodes_played / self._play.epsilon_episodes)
        return 1.0 + progress * (self._play.final_epsilon - 1.0)

    def state(self) -> StreamState:
        """Return the position and the seeds and actions of all episodes in the buffer, as JSON."""
        kept = tuple((episode.seed, episode.actions) for episode in self._buffer)
        return {"played": self._episodes_played, "taken": self._batches_sampled, "kept": kept}

    def restore(self, state: StreamState) -> None:
        """Restore a position; episodes are replayed from their seeds and actions."""
        self._episodes_played, self._batches_sampled = state["played"], state["taken"]
        self._buffer.clear()
        self._steps = 0
        for number, actions in state["kept"]:
            self._add(self._episodes.replay(number, actions))

    def _play_episodes(self) -> None:
        numbers = range(self._episodes_played, self._episodes_played + self._play.parallel_episodes)
        training = self._model.training
        self._model.eval()
        played = play(self._model, self._episodes, numbers, states=self._states, epsilon=self.epsilon, seed=self._seed)
        self._model.train(training)
        self._episodes_played += len(played)
        for episode in played:
            self._add(episode)

    def _add(self, episode: Episode) -> None:
        self._buffer.append(episode)
        self._steps += len(episode)
        while self._steps > self._data.buffer and len(self._buffer) > 1:
            self._steps -= len(self._buffer.popleft())
