"""What goes together in recipes that read a text a second time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.config.parts import Head, JoinedReader, StatesWriter, TokenReader
from saccade.config.stacks import TransformerStack, TransformerXL

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


def misfits_of_again(recipe: Recipe) -> str:
    """What does not go with a second reading, said in one line; nothing where all goes together."""
    reader = recipe.reader
    if isinstance(reader, JoinedReader) and reader.ask.again is not None:
        return "a question about a picture is read once; leave reader.ask.again out"
    if not isinstance(reader, TokenReader) or reader.again is None:
        return ""
    again = reader.again
    if not isinstance(recipe.writer, Head | StatesWriter):
        return (
            "reader.again is for labels and for vectors of texts, got writer.kind = "
            f'"{recipe.writer.kind}"; leave it out, or set writer.kind = "label"'
        )
    if not isinstance(reader.stack, TransformerStack):
        return f'reader.again attends to a Transformer, got reader.stack.kind = "{reader.stack.kind}"; leave it out'
    if "reversible" in (reader.stack.residual, again.stack.residual):
        return 'reader.again has no place beside residual = "reversible"; set it to true on both stacks'
    if reader.levels:
        return "reader.again gives states alone to what comes after it; set reader.levels = false"
    if isinstance(again.positions, TransformerXL) and again.positions.segments:
        return "reader.again.positions.segments: only the first reading tells segments apart; set it to false"
    return ""
