"""Breaks of navigation and of reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.blocks.recurrent_writer import RecurrentWriter
from saccade.layers.memory import Memory
from saccade.model.model import Model
from saccade.model.readers.tokens import TokenReader
from saccade.model.run import named_weights
from saccade.train.average import MovingAverage
from saccade_worlds.navigation.poses import Navigation
from saccade_worlds.navigation.writer import ActionWriter
from saccade_worlds.playing.objective import temporal_difference_loss
from saccade_worlds.playing.play import play
from saccade_worlds.playing.replay import Replay


@break_code("pose-never-changes", "An agent that walks stays at the pose where it began.")
def keep_pose(patch: Patch) -> None:
    def with_poses(original: Any, self: Navigation, poses: Any) -> Navigation:
        return self

    patch.replace(Navigation.with_poses, with_poses)


@break_code("agent-is-blind", "An agent that walks sees nothing of its surroundings.")
def blindfold(patch: Patch) -> None:
    def embed(
        original: Any, self: ActionWriter, ids: Tensor, positions: Any, navigation: Navigation, poses: Tensor
    ) -> Any:
        return original(self, ids, positions, navigation._replace(observations=0 * navigation.observations), poses)

    patch.replace(ActionWriter._embed, embed)


@break_code("walls-do-not-block", "An agent that walks may choose to walk into a wall.")
def open_walls(patch: Patch) -> None:
    patch.replace(Navigation.get_blocked_actions, lambda original, self: torch.zeros_like(original(self)))


@break_code("aligner-without-words", "The multi-level aligner attends to states h_j alone, without the words x_j.")
def leave_out_words(patch: Patch) -> None:
    change_levels(patch, lambda states, width: states * (torch.arange(states.shape[-1]) < width))


@break_code("aligner-without-states", "The multi-level aligner attends to words x_j alone, without the states h_j.")
def leave_out_states(patch: Patch) -> None:
    change_levels(patch, lambda states, width: states * (torch.arange(states.shape[-1]) >= width))


def change_levels(patch: Patch, change: Callable[[Tensor, int], Tensor]) -> None:
    """Change memories of both levels (h_j; x_j), given the width of h_j."""

    def forward(original: Any, self: TokenReader, ids: Tensor, mask: Any) -> Memory:
        memory: Memory = original(self, ids, mask)
        return replace(memory, states=change(memory.states, self.stack.dim)) if self.concat_embeddings else memory

    patch.replace(TokenReader.forward, forward)


# ---- playing


@break_code("target-network-is-online", "Temporal-difference learning has no target network: it uses the model itself.")
def use_online_network(patch: Patch) -> None:
    def loss(original: Any, model: Model, *args: Any, target: Any, **settings: Any) -> Any:
        return original(model, *args, target=named_weights(model), **settings)

    patch.replace(temporal_difference_loss, loss)


@break_code("future-without-value", "Temporal-difference learning counts the next reward alone.")
def leave_out_future(patch: Patch) -> None:
    def loss(original: Any, *args: Any, discount: float, **settings: Any) -> Any:
        return original(*args, discount=0 * discount, **settings)

    patch.replace(temporal_difference_loss, loss)


@break_code("replay-of-the-last-round", "The replay buffer forgets all episodes but those of the last round.")
def forget_rounds(patch: Patch) -> None:
    def play_episodes(original: Any, self: Replay) -> None:
        self._buffer.clear()
        self._steps = 0
        original(self)

    patch.replace(Replay._play_episodes, play_episodes)


@break_code("no-exploration", "Episodes are played without random actions.")
def leave_out_exploration(patch: Patch) -> None:
    def play_greedily(original: Any, *args: Any, epsilon: float = 0.0, **settings: Any) -> Any:
        return original(*args, epsilon=0 * epsilon, **settings)

    patch.replace(play, play_greedily)


@break_code("first-picture-only", "An agent that plays keeps looking at the first picture of its episode.")
def keep_first_picture(patch: Patch) -> None:
    patch.replace(RecurrentWriter.switch_memory, lambda original, self, state, memory: state)


@break_code("moving-average-frozen", "The moving average of the weights keeps the initial weights.")
def freeze_average(patch: Patch) -> None:
    patch.replace(MovingAverage.update, lambda original, self, *, step: None)
