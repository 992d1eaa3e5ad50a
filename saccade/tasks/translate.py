"""Translation and any other text-to-text task: write the second text of a pair given the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.task import Task
from saccade.tasks import BaseTask

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

TEXT_TO_TEXT = "text-to-text"


class Translate(BaseTask):
    name = "translate"
    small_recipe = "small-data"
    transfer_group = TEXT_TO_TEXT

    def get_data_usage(self, recipe: Recipe) -> str:
        return "--data SRC TGT (data=[SRC, TGT]"


TASK: Task = Translate()
