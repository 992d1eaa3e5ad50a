"""Where rows stand in a world of N poses, and what they see there: actions are carried out while they are written."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Walking(NamedTuple):
    """The poses of rows; `moves` has the pose to which each token leads, `sights` what is seen from each pose."""

    poses: Int[Tensor, " B"]
    moves: Int[Tensor, "N V"]
    sights: Float[Tensor, "N F"]

    def after(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """The pose of each row after each of its tokens."""
        pose, poses = self.poses, []
        for token in ids.unbind(1):
            pose = self.moves[pose, token]
            poses.append(pose)
        return torch.stack(poses, 1)

    def blocked(self) -> Bool[Tensor, "B V"]:
        """The tokens that lead on from other poses, but not from that of a row: there is a wall."""
        stays = self.moves == torch.arange(len(self.moves), device=self.moves.device)[:, None]
        return stays[self.poses] & ~stays.all(0)

    def at(self, poses: Int[Tensor, " B"]) -> "Walking":
        return self._replace(poses=poses)

    def reorder(self, indices: Int[Tensor, " C"]) -> "Walking":
        return self._replace(poses=self.poses.index_select(0, indices))
