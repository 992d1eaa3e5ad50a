"""Learn from pairs of texts to write the second one given the first."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Translate(BaseTask):
    name = "translate"


TASK = Translate()
