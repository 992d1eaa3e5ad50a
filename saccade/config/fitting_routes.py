"""What goes together in recipes whose actions are carried out in a world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.kinds import Custom
from saccade.config.parts import ActionWriter, TokenReader

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

OF_ROUTES = ("loss", "success", "accuracy")


def misfits_of_walking(recipe: Recipe) -> str:
    """What does not go with walking, said in one line; nothing where all goes together."""
    walks = recipe.task.name == "walk"
    if walks != isinstance(recipe.writer, ActionWriter):
        wanted = '"actions"' if walks else "another kind"
        return (
            f'task = "{recipe.task.name}" goes with writer.kind = {wanted}, got "{recipe.writer.kind}"; '
            "change one of them"
        )
    if not walks:
        return ""
    if not isinstance(recipe.reader, TokenReader | Custom):
        return f'task = "walk" reads instructions; set reader.kind = "tokens", got "{recipe.reader.kind}"'
    if recipe.tokenizer.kind != "words" or recipe.tokenizer.shared:
        return 'actions are words of their own; set tokenizer.kind = "words" and tokenizer.shared = false'
    if recipe.train.metric not in OF_ROUTES:
        return f'train.metric = "{recipe.train.metric}" is not of routes; it is one of {", ".join(OF_ROUTES)}'
    if recipe.predict.replace_unknown:
        return "no word of an instruction is an action; set predict.replace_unknown = false"
    if recipe.data.stream:
        return "routes are read as a whole; set data.stream = false"
    return ""
