"""What goes together where CTC stands beside attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.kinds import Custom
from saccade.config.parts import NoReader, TokenWriter
from saccade.config.training import Scheduled

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits_of_ctc(recipe: Recipe) -> str:
    """A head that nobody trains, or a loss without its head, said in one line; nothing where all goes together."""
    head = isinstance(recipe.writer, TokenWriter) and recipe.writer.ctc
    learned = any(isinstance(objective, Scheduled) and objective.ctc for objective in recipe.objectives)
    own = any(isinstance(objective, Custom) for objective in recipe.objectives)
    if head and isinstance(recipe.reader, NoReader):
        return "writer.ctc = true says a letter for each state of a reader, but there is none; set writer.ctc = false"
    if head and not learned and not own:
        return (
            'writer.ctc = true is a head that no objective trains; set objectives.0.kind = "scheduled" with '
            "ctc = 0.3, or writer.ctc = false"
        )
    if learned and not head:
        return 'ctc of the objective "scheduled" needs its head; set writer.ctc = true, or ctc = 0'
    if recipe.predict.ctc and not head:
        return f"predict.ctc = {recipe.predict.ctc:g} needs writer.ctc = true; set it, or predict.ctc = 0"
    return ""
