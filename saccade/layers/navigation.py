"""Navigation of an agent in a world of N poses (places with directions) while its actions are decoded."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


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

    def with_poses(self, poses: Int[Tensor, " B"]) -> "Navigation":
        return self._replace(poses=poses)

    def reorder(self, indices: Int[Tensor, " C"]) -> "Navigation":
        return self._replace(poses=self.poses.index_select(0, indices))
