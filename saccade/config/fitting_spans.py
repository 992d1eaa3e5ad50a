"""What goes together in recipes that restore hidden spans, and in stacks that are computed backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saccade.config.kinds import Custom
from saccade.config.media import MediaReader
from saccade.config.parts import NoReader, TokenWriter
from saccade.config.stacks import AT_INPUT, TransformerStack
from saccade.config.training import Reward

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits_of_restoring(recipe: Recipe) -> str:
    """What does not go with hidden spans, said in one line; nothing where all goes together."""
    if recipe.task.name != "restore":
        return ""
    spans, tokenizer = 'task = "restore" writes hidden spans', recipe.tokenizer
    if not isinstance(recipe.writer, TokenWriter | Custom):
        return f'{spans}, got writer.kind = "{recipe.writer.kind}"; set writer.kind = "tokens"'
    if any(isinstance(objective, Reward) for objective in recipe.objectives):
        return f'{spans}, so that there are no pairs for the objective "reward"; take "next-token" or "r-drop"'
    if not tokenizer.shared:
        return f"{spans} of what is read, so that there is one vocabulary; set tokenizer.shared = true"
    if tokenizer.kind not in ("file", "init") and not 0 < tokenizer.sentinels < tokenizer.size:
        return (
            f"{spans}, each with a sentinel before it, of which there must be some, and fewer than tokenizer.size = "
            f"{tokenizer.size}, got tokenizer.sentinels = {tokenizer.sentinels}; set it to 100"
        )
    if recipe.train.metric != "loss":
        return f'{spans}, so that train.metric = "{recipe.train.metric}" has no references; set train.metric = "loss"'
    return ""


def misfits_of_reversible(recipe: Recipe) -> str:
    """What does not go with stacks that are computed backwards."""
    for side, part in (("reader", recipe.reader), ("writer", recipe.writer)):
        stack: Any = getattr(part, "stack", None)
        if not isinstance(stack, TransformerStack) or stack.residual != "reversible":
            continue
        kind = f'{side}.stack.residual = "reversible"'
        if isinstance(part, MediaReader):
            return f"{kind} is for readers of texts, got one of {part.medium}s; leave it out"
        positions = part.positions  # type: ignore[union-attr]
        if side == "writer" and not isinstance(recipe.reader, NoReader):
            return f'{kind} has no place for attention to what is read; set reader.kind = "none" and task = "write"'
        if not isinstance(positions, (*AT_INPUT, Custom)):
            return f'{kind} takes positions at the input, got "{positions.kind}"; try {side}.positions.kind = "axial"'
        if side == "writer" and getattr(part, "tie", "none") != "none":
            return f'{kind} gives states twice as wide as token vectors; set writer.tie = "none"'
    return ""
