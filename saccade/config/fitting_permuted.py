"""What goes together in recipes that predict tokens in any order, and where segments are told apart in attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saccade.config.kinds import Custom
from saccade.config.parts import PermutedWriter, TokenReader
from saccade.config.stacks import AT_INPUT, TransformerStack, TransformerXL

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits_of_permuting(recipe: Recipe) -> str:
    """What does not go with two streams through a reader, said in one line; nothing where all goes together."""
    reader = recipe.reader
    if not isinstance(recipe.writer, PermutedWriter):
        return ""
    two = 'writer.kind = "permuted" leads two streams through the reader'
    if not isinstance(reader, TokenReader) or not isinstance(reader.stack, TransformerStack):
        return f'{two}, which must be a Transformer of tokens; set reader.kind = "tokens", reader.stack.kind likewise'
    stack = reader.stack
    needed = {"norm": ("post", '"post"'), "residual": (True, "true"), "window": (None, '"none"')}
    for name, (value, said) in {**needed, "experts": (None, '"none"')}.items():
        if getattr(stack, name) != value:
            return f"{two}, which is made for reader.stack.{name} = {said}, got {getattr(stack, name)!r}; set it so"
    if reader.embedding_dim is not None:
        return f'{two}, of one width from the embedding on; set reader.embedding_dim = "none"'
    if reader.causal:
        return f"{two}, and what each sees follows from an order; set reader.causal = false"
    if isinstance(reader.positions, (*AT_INPUT, Custom)):
        return (
            f"{two}, one of which knows its places from attention alone, got reader.positions.kind = "
            f'"{reader.positions.kind}"; set it to "transformer-xl"'
        )
    return ""


def misfits_of_segments(recipe: Recipe) -> str:
    """Only readers tell segments apart inside attention."""
    where: Any = getattr(recipe.writer, "positions", None)
    if isinstance(where, TransformerXL) and where.segments:
        return "writer.positions.segments is for readers: what is written is one segment; set it to false"
    return ""
