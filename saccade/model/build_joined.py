"""The reader of a picture and a question from its part of a recipe."""

from collections.abc import Callable, Mapping
from typing import Any

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.errors import SaccadeError
from saccade.layers.joining import Concat, Glimpses, Hops, QuestionAlone
from saccade.layers.reversible import ReversibleStack
from saccade.model.build_media import build_cell_stack, build_media_reader
from saccade.model.joined_reader import JoinedReader


def build_joined(
    reader: schema.JoinedReader, build_ask: Callable[[schema.TokenReader], Any], *, train: schema.Train, kinds: Any
) -> JoinedReader:
    """Both readers and their join; `build_ask` makes the reader of questions.

    A user's own join is called with the widths of cells and of words.
    """
    ask = build_ask(reader.ask)
    if isinstance(reader.join, schema.QuestionJoin):
        return JoinedReader(None, ask, QuestionAlone(ask.dim), grid=reader.look.grid)
    look = build_media_reader(reader.look, train=train, kinds=kinds)
    join = build_join(reader, look.dim, ask, train=train, kinds=kinds)
    return JoinedReader(look, ask, join, grid=look.grid, blind=reader.blind)


def build_join(
    reader: schema.JoinedReader, cells: int, ask: Any, *, train: schema.Train, kinds: Mapping[str, Any]
) -> Any:
    join = reader.join
    if isinstance(join, Custom):
        return kinds[join.kind](cells, ask.dim, **join.settings())
    if isinstance(join, schema.GlimpsesJoin):
        return Glimpses(cells, ask.dim, hidden=join.hidden, glimpses=join.glimpses, dropout=join.dropout)
    if isinstance(join, schema.HopsJoin):
        words = int(ask.stack.entry if isinstance(ask.stack, ReversibleStack) else ask.stack.dim)
        return Hops(cells, words, ask.dim, dim=join.dim, hops=join.hops, dropout=join.dropout)
    assert isinstance(join, schema.ConcatJoin), "a question alone has no join"
    stack = build_cell_stack(join.stack, train=train, kinds=kinds)
    if stack is not None and stack.dim != join.dim:
        raise SaccadeError(
            f"reader.join.stack.dim must be that of the join, {join.dim}, got {stack.dim}; set one to the other"
        )
    return Concat(cells, ask.dim, dim=join.dim, stack=stack)
