"""Follow instructions in a known map: learn from routes to write actions, each carried out at once."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Walk(BaseTask):
    name = "walk"


TASK = Walk()
