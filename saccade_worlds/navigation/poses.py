"""Worlds as graphs of N poses (places with directions): as a field of a batch, and while actions are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class NavigationGraph:
    """The worlds that a batch of the navigation task walks in, as a graph of N poses.

    A pose is a place and a direction. Each token of the vocabulary leads from a pose to a pose, most to the same one.
    """

    start_poses: Tensor  # (B, 1) int64, pose at which each row starts
    mask: Tensor  # (B, 1) bool, all True
    transitions: Tensor  # (N, V) int64, the next pose for each pose and token
    observations: Tensor  # (N, F) float, features of what is visible from each pose

    @property
    def content(self) -> Tensor:
        return self.start_poses

    @property
    def num_positions(self) -> int:
        return self.start_poses.numel()

    @property
    def shared_tensors(self) -> tuple[Tensor, ...]:
        return self.transitions, self.observations

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.start_poses, self.mask, *self.shared_tensors

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> NavigationGraph:
        return NavigationGraph(*(x.to(device, non_blocking=non_blocking) for x in self.tensors))

    def pin_memory(self) -> NavigationGraph:
        return NavigationGraph(*(x.pin_memory() for x in self.tensors))

    def select_rows(self, rows: slice) -> NavigationGraph:
        return NavigationGraph(self.start_poses[rows], self.mask[rows], *self.shared_tensors)


class Navigation(NamedTuple):
    """The current pose of each row, the next pose for each pose and token, and the observation at each pose."""

    poses: Int[Tensor, " B"]
    transitions: Int[Tensor, "N V"]
    observations: Float[Tensor, "N F"]

    def follow_actions(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """The pose of each row after each of its tokens."""
        pose, poses = self.poses, []
        for token in ids.unbind(1):
            pose = self.transitions[pose, token]
            poses.append(pose)
        return torch.stack(poses, 1)

    def get_blocked_actions(self) -> Bool[Tensor, "B V"]:
        """Tokens that change other poses but not the current one of a row, because of a wall."""
        stays = self.transitions == torch.arange(len(self.transitions), device=self.transitions.device)[:, None]
        return stays[self.poses] & ~stays.all(0)

    def with_poses(self, poses: Int[Tensor, " B"]) -> Navigation:
        return self._replace(poses=poses)

    def reorder(self, indices: Int[Tensor, " C"]) -> Navigation:
        return self._replace(poses=self.poses.index_select(0, indices))
