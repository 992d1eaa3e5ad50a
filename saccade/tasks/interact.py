"""Reinforcement learning: learn the value of actions from episodes played in an environment."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Interact(BaseTask):
    name = "interact"


TASK = Interact()
