"""Language modelling: learn from documents to predict each token from those before it."""

from __future__ import annotations

from saccade.tasks import BaseTask


class Write(BaseTask):
    name = "write"


TASK = Write()
