"""Broken walking."""

from broken_registry import puts

from saccade.layers.walking import Walking

puts(31, owner=Walking, at=lambda self, poses: self)  # a step that is not taken
