"""Classification, regression and tagging: learn a class or number for each input, or a tag for each word."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Label(BaseTask):
    name = "label"


TASK = Label()
