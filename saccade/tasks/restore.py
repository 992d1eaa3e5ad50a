"""Span corruption (T5): learn from documents to write the spans that were replaced by sentinels."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Restore(BaseTask):
    name = "restore"


TASK = Restore()
