"""Deliberately broken navigation."""

from broken_registry import puts

from saccade_worlds.navigation.poses import Navigation

puts(31, owner=Navigation, with_poses=lambda self, poses: self)  # the pose never changes
