"""Learn from images or audio with texts to write the text: captions, transcripts, answers."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Describe(BaseTask):
    name = "describe"


TASK = Describe()
