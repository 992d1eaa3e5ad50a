"""What goes together in recipes that read pictures or sound, and where attention is asked to look everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.kinds import Custom
from saccade.config.media import MediaReader, PictureReader
from saccade.config.parts import LabelWriter, TokenWriter
from saccade.config.stacks import RecurrentWriting
from saccade.config.training import Label, NextToken

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

OF_MEDIA = ("describe", "label")


def misfits_of_media(recipe: Recipe) -> str:
    """What does not go with pictures and sound, said in one line; nothing where all goes together."""
    if not isinstance(recipe.reader, MediaReader):
        if recipe.task == "describe" and not isinstance(recipe.reader, Custom):
            return (
                f'task = "describe" reads pictures or sound, got reader.kind = "{recipe.reader.kind}"; set '
                'reader.kind = "patches" or "grid", or task = "translate"'
            )
        return _misfits_of_looks(recipe)
    what = f"a reader of {recipe.reader.medium}s"
    if recipe.task not in OF_MEDIA:
        return f'task = "{recipe.task}" reads texts, got {what}; set task = "describe" or "label"'
    if recipe.task == "label" and not isinstance(recipe.writer, LabelWriter | Custom):
        return f'{what} goes with writer.kind = "label" here, got "{recipe.writer.kind}"; change it'
    if recipe.task == "describe" and not isinstance(recipe.writer, TokenWriter | Custom):
        return f'{what} goes with writer.kind = "tokens" here, got "{recipe.writer.kind}"; change it'
    if isinstance(recipe.writer, TokenWriter) and recipe.writer.tie in ("all", "input"):
        return f'{what} has no token vectors to share; set writer.tie = "output"'
    if recipe.predict.replace_unknown:
        return f"{what} reads no words that could replace unknown ones; set predict.replace_unknown = false"
    if recipe.data.stream:
        return f"{what} keeps them decoded on the disk; set data.stream = false"
    if recipe.tokenizer.dropout:
        return f"{what} goes with one way to tokenise; set tokenizer.dropout = 0"
    if not recipe.tokenizer.shared:
        return f"{what} has one vocabulary, that of what is written; set tokenizer.shared = true"
    return _misfits_of_looks(recipe)


def _misfits_of_looks(recipe: Recipe) -> str:
    """Penalties of looks need looks, and mixed pictures need pictures."""
    for objective in recipe.objectives:
        mixes = isinstance(objective, Label) and (objective.mixup or objective.cutmix)
        if mixes and not isinstance(recipe.reader, PictureReader | Custom):
            return 'mixup and cutmix of the objective "label" mix pictures, but none are read; set them to 0'
        if isinstance(objective, NextToken) and objective.coverage:
            stack = recipe.writer.stack if isinstance(recipe.writer, TokenWriter) else None
            if not isinstance(stack, RecurrentWriting) or stack.attention != "additive":
                return 'coverage of the objective "next-token" needs writer.stack.attention = "additive"; set it to 0'
    return ""
