"""What of a recipe goes together, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.kinds import Custom
from saccade.config.parts import FillWriter, NoReader, TokenWriter
from saccade.config.stacks import TransformerStack
from saccade.config.training import Reward

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits(recipe: Recipe) -> str:
    """What of a recipe does not go with its task, said in one line; nothing where all goes together."""
    none = isinstance(recipe.reader, NoReader)
    if none != (recipe.task == "write"):
        return (
            f'task = "{recipe.task}" goes with reader.kind = "{"none" if not none else "tokens"}", '
            f'got "{recipe.reader.kind}"; change one of them'
        )
    return _misfits_of_writing(recipe) if none else ""


def _misfits_of_writing(recipe: Recipe) -> str:
    writer, without = recipe.writer, 'nothing is read (reader.kind = "none")'
    kinds = [objective.kind for objective in recipe.objectives if isinstance(objective, Reward)]
    if isinstance(writer, FillWriter):
        return f'{without}, so that no length is known to a writer of kind "fill"; set writer.kind = "tokens"'
    if isinstance(writer, TokenWriter) and not isinstance(writer.stack, TransformerStack | Custom):
        kind = writer.stack.kind
        return f'{without}, and a {kind} stack writes about something; set writer.stack.kind = "transformer"'
    if isinstance(writer, TokenWriter) and writer.tie in ("all", "input"):
        return f'{without}, so that writer.tie = "{writer.tie}" has no reader to share with; set writer.tie = "output"'
    if kinds:
        return f'{without}, so that there are no pairs for the objective "{kinds[0]}"; take "next-token" or "r-drop"'
    if not recipe.tokenizer.shared:
        return f"{without}, so that there is one vocabulary; set tokenizer.shared = true"
    if "reader" in recipe.freeze:
        return f"{without}, so that there is no reader to freeze; leave it out"
    if recipe.train.metric != "loss":
        return f'{without}, so that train.metric = "{recipe.train.metric}" has no references; set train.metric = "loss"'
    return ""
