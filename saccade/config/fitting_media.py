"""What goes together in recipes that read pictures or sound, and where attention is asked to look everywhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from saccade.config.fitting_looks import misfits_of_looks
from saccade.config.hidden_patches import PatchWriter
from saccade.config.kinds import Custom
from saccade.config.media import MediaReader, PatchReader, PictureReader
from saccade.config.parts import LabelWriter, StatesWriter, TokenWriter

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

OF_MEDIA = ("describe", "label", "encode")


def misfits_of_media(recipe: Recipe) -> str:
    """What does not go with pictures and sound, said in one line; nothing where all goes together."""
    if not isinstance(recipe.reader, MediaReader):
        if recipe.task.name == "describe" and not isinstance(recipe.reader, Custom):
            return (
                f'task = "describe" reads pictures or sound, got reader.kind = "{recipe.reader.kind}"; set '
                'reader.kind = "patches" or "grid", or task = "translate"'
            )
        return misfits_of_looks(recipe)
    what = f"a reader of {recipe.reader.medium}s"
    if recipe.task.name not in OF_MEDIA:
        return f'task = "{recipe.task.name}" reads texts, got {what}; set task = "describe" or "label"'
    if isinstance(recipe.writer, PatchWriter) and not isinstance(recipe.reader, PatchReader):
        kind = recipe.reader.kind
        return f'writer.kind = "patches" restores patches, got reader.kind = "{kind}"; set it to "patches"'
    if recipe.task.name == "encode" and not isinstance(recipe.writer, StatesWriter | PatchWriter | Custom):
        kinds = '"states" or "patches"'
        return f'{what} goes with writer.kind = {kinds} here, got "{recipe.writer.kind}"; change it, or the task'
    if recipe.task.name == "label" and not isinstance(recipe.writer, LabelWriter | Custom):
        return f'{what} goes with writer.kind = "label" here, got "{recipe.writer.kind}"; change it'
    if recipe.task.name == "describe" and not isinstance(recipe.writer, TokenWriter | Custom):
        return f'{what} goes with writer.kind = "tokens" here, got "{recipe.writer.kind}"; change it'
    if isinstance(recipe.writer, TokenWriter) and recipe.writer.tie in ("all", "input"):
        return f'{what} has no token vectors to share; set writer.tie = "output"'
    if recipe.predict.replace_unknown:
        return f"{what} reads no words that could replace unknown ones; set predict.replace_unknown = false"
    if recipe.data.stream:
        return f"{what} keeps them decoded on the disk; set data.stream = false"
    if recipe.tokenizer.dropout:
        return f"{what} goes with one way to tokenise; set tokenizer.dropout = 0"
    if not recipe.tokenizer.shared and not recipe.reader.asks:
        return f"{what} has one vocabulary, that of what is written; set tokenizer.shared = true"
    return misfits_of_states(recipe) or misfits_of_looks(recipe)


def misfits_of_states(recipe: Recipe) -> str:
    """What a head asks for that the states of a picture do not have."""
    reader, writer = recipe.reader, recipe.writer
    if not isinstance(reader, PictureReader):
        return ""
    before = isinstance(reader, PatchReader) and reader.first
    if isinstance(writer, LabelWriter) and writer.pooling not in ("mean", *(["first"] if before else [])):
        return (
            f'writer.pooling = "{writer.pooling}" would take one corner of a picture for the whole; set '
            'writer.pooling = "mean", or "first" with reader.kind = "patches" and reader.first = true'
        )
    if isinstance(reader, PatchReader) and isinstance(writer, PatchWriter) and math.prod(reader.grid) < 2:
        return (
            f"a picture of one patch has no others to restore it from; set reader.patch below {reader.patch}, or a "
            "larger reader.size"
        )
    return ""
