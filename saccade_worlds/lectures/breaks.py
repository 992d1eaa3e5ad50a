"""Breaks of navigation and of reinforcement learning."""

from __future__ import annotations

from typing import Any

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade_worlds.navigation.poses import Navigation


@break_code("pose-never-changes", "An agent that walks stays at the pose where it began.")
def keep_pose(patch: Patch) -> None:
    def with_poses(original: Any, self: Navigation, poses: Any) -> Navigation:
        return self

    patch.replace(Navigation.with_poses, with_poses)
