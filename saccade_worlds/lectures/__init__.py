"""Checks of the claims about navigation and reinforcement learning."""

from saccade_worlds.lectures import navigation, reinforcement

__all__ = ["navigation", "reinforcement"]
