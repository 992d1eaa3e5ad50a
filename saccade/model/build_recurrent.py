"""Recurrent stacks from their part of a recipe."""

from saccade.config.kinds import Custom
from saccade.config.schema import Recipe, RecurrentReading, RecurrentWriting
from saccade.errors import SaccadeError
from saccade.layers.attention import Bilinear, Dot
from saccade.layers.recurrence import FixedContext, LookAfter, LookFirst
from saccade.layers.recurrent import RecurrentStack
from saccade.layers.recurrent_writer import FirstState, RecurrentWriter


def build_recurrent(
    s: RecurrentReading | RecurrentWriting, *, memory_dim: int | None, recompute: bool
) -> RecurrentStack | RecurrentWriter:
    """The stack of a reader or of a writer, which without `memory_dim` has nothing to look at."""
    if recompute:
        raise SaccadeError("train.recompute=true is for Transformer stacks, got a recurrent one; leave it out")
    if isinstance(s, RecurrentReading):
        return RecurrentStack(
            s.dim,
            cell=s.cell,
            layers=s.layers,
            directions="both at first" if s.bidirectional == "first" else "both" if s.bidirectional else "one",
            reverse=s.reverse,
            residual=s.residual,
            dropout=s.dropout,
        )
    copied = s.first == "copied"
    first = FirstState(s.dim, cell=s.cell, layers=s.layers, memory_dim=memory_dim, context=s.context, copied=copied)
    return RecurrentWriter(build_recurrence(s, memory_dim), first=first, dim=s.dim, dropout=s.dropout)


def build_recurrence(s: RecurrentWriting, memory_dim: int | None) -> FixedContext | LookFirst | LookAfter:
    if s.attention == "none":
        fed = memory_dim if s.input_feeding and memory_dim else 0
        return FixedContext(s.dim, cell=s.cell, layers=s.layers, memory_dim=fed, residual=s.residual, dropout=s.dropout)
    if memory_dim is None:
        raise SaccadeError(f'attention = "{s.attention}" needs a reader to look at; set attention = "none"')
    if s.attention == "additive":
        return LookFirst(
            s.dim, cell=s.cell, layers=s.layers, memory_dim=memory_dim, residual=s.residual, dropout=s.dropout
        )
    if s.attention == "dot" and memory_dim != s.dim:
        raise SaccadeError(
            f'attention = "dot" needs a writer as wide as its reader, got {s.dim} and {memory_dim}; set the same '
            'stack.dim, or attention = "general"'
        )
    score = Dot() if s.attention == "dot" else Bilinear(s.dim, key_dim=memory_dim)
    return LookAfter(
        s.dim,
        cell=s.cell,
        layers=s.layers,
        memory_dim=memory_dim,
        score=score,
        feeds=s.input_feeding,
        residual=s.residual,
        dropout=s.dropout,
    )


def check_copied(recipe: Recipe) -> None:
    """States can be copied between layers of the same cell and width."""
    if isinstance(recipe.writer, Custom) or not isinstance(recipe.writer.stack, RecurrentWriting):
        return
    writer, reader = recipe.writer.stack, None if isinstance(recipe.reader, Custom) else recipe.reader.stack
    if writer.first != "copied":
        return
    if not isinstance(reader, RecurrentReading):
        raise SaccadeError('writer.stack.first = "copied" needs a recurrent reader; set first = "predicted"')
    wanted, got = ((s.cell, s.layers, s.dim) for s in (writer, reader))
    if wanted != got:
        raise SaccadeError(
            'writer.stack.first = "copied" needs a reader with the writer\'s cell, layers and dim '
            f'{wanted}, got {got}; make them equal, or set first = "predicted"'
        )
