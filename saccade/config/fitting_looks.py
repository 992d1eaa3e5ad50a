"""Which ways of looking go with what is read, and with what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.kinds import Custom
from saccade.config.media import PatchReader, PictureReader
from saccade.config.parts import TokenWriter
from saccade.config.stacks import RecurrentWriting
from saccade.config.training import Label, NextToken, Reinforce

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits_of_looks(recipe: Recipe) -> str:
    """Penalties of looks need looks, looks that are drawn need to learn, and mixed pictures need pictures."""
    stack = recipe.writer.stack if isinstance(recipe.writer, TokenWriter) else None
    looks = stack if isinstance(stack, RecurrentWriting) else RecurrentWriting()
    for objective in recipe.objectives:
        mixes = isinstance(objective, Label) and (objective.mixup or objective.cutmix)
        if mixes and not isinstance(recipe.reader, PictureReader | Custom):
            return 'mixup and cutmix of the objective "label" mix pictures, but none are read; set them to 0'
        if isinstance(objective, NextToken) and objective.coverage and looks.attention != "additive":
            return 'coverage of the objective "next-token" needs writer.stack.attention = "additive"; set it to 0'
        unknown = isinstance(objective, Custom) or isinstance(stack, Custom)
        if isinstance(objective, Reinforce) != looks.hard and not unknown:
            return (
                'writer.stack.hard = true draws where to look, which the objective "reinforce" learns, and nothing '
                f'else does; got hard = {str(looks.hard).lower()} and "{objective.kind}"'
            )
    cells = isinstance(recipe.reader, PictureReader) and not (
        isinstance(recipe.reader, PatchReader) and recipe.reader.first
    )
    if looks.attention == "around" and not cells and not isinstance(recipe.reader, Custom):
        return (
            'writer.stack.attention = "around" looks at the cells of a picture; set reader.kind = "grid", or another '
            "attention"
        )
    return ""
