"""Checks of the lecture rows about navigation and reinforcement learning."""

from saccade_worlds.lectures import navigation, reinforcement

__all__ = ["navigation", "reinforcement"]
