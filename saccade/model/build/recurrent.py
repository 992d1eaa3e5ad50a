"""Recurrent stacks from their part of a recipe."""

from saccade.config.schema import Recipe, RecurrentReading, RecurrentWriting
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import Look, LookAround
from saccade.layers.attention.scores import Bilinear, Dot
from saccade.layers.blocks.experts import Between
from saccade.layers.blocks.recurrence import FixedContext, LookAfter, LookFirst
from saccade.layers.blocks.recurrent import Directions, RecurrentStack, Way
from saccade.layers.blocks.recurrent_writer import FirstState, RecurrentWriter
from saccade.model.build.feedforward import build_experts
from saccade.model.build.options import Options

DIRECTIONS: dict[bool | str, Directions] = {
    False: "one",
    True: "both",
    "first": "both at first",
    "alternate": "in turn",
}


def build_recurrent_reader(s: RecurrentReading, options: Options) -> RecurrentStack:
    check_recompute(options)
    stack = RecurrentStack(
        s.dim,
        cell=s.cell,
        layers=s.layers,
        directions=DIRECTIONS[s.bidirectional],
        reverse=s.reverse,
        connections=connections(s),
        between=build_between(s),
        dropout=s.dropout,
    )
    return stack if options.copies_states else stack.without_cells()


def build_recurrent_writer(s: RecurrentWriting, options: Options, *, memory_dim: int | None) -> RecurrentWriter:
    """The stack of a writer, which without `memory_dim` has nothing to attend to."""
    check_recompute(options)
    copied = s.first == "copied"
    first = FirstState(s.dim, cell=s.cell, layers=s.layers, memory_dim=memory_dim, context=s.context, copied=copied)
    recurrence, between = build_recurrence(s, memory_dim), build_between(s)
    return RecurrentWriter(recurrence, first=first, dim=s.dim, between=between, dropout=s.dropout)


def check_recompute(options: Options) -> None:
    if options.train.recompute:
        raise SaccadeError("train.recompute=true is for Transformer stacks, got a recurrent one; leave it out")


def build_recurrence(s: RecurrentWriting, memory_dim: int | None) -> FixedContext | LookFirst | LookAfter:
    if s.attention == "none":
        fed = memory_dim if s.input_feeding and memory_dim else 0
        return FixedContext(
            s.dim, cell=s.cell, layers=s.layers, memory_dim=fed, connections=connections(s), dropout=s.dropout
        )
    if memory_dim is None:
        raise SaccadeError(f'attention = "{s.attention}" needs a reader to look at; set attention = "none"')
    if s.attention == "additive":
        return LookFirst(
            s.dim, cell=s.cell, layers=s.layers, memory_dim=memory_dim, gate=s.gate, hard=s.hard,
            connections=connections(s), dropout=s.dropout,
        )  # fmt: skip
    if s.attention == "dot" and memory_dim != s.dim:
        raise SaccadeError(
            f'attention = "dot" needs a writer as wide as its reader, got {s.dim} and {memory_dim}; set the same '
            'stack.dim, or attention = "general"'
        )
    if s.attention == "around":
        cross: Look = LookAround(s.dim, key_dim=memory_dim, hidden=s.dim)
    else:
        cross = Look(Dot() if s.attention == "dot" else Bilinear(s.dim, key_dim=memory_dim))
    return LookAfter(
        s.dim,
        cell=s.cell,
        layers=s.layers,
        memory_dim=memory_dim,
        cross=cross,
        feeds=s.input_feeding,
        connections=connections(s),
        dropout=s.dropout,
    )


def build_between(s: RecurrentReading | RecurrentWriting) -> Between:
    """Experts above every n-th layer but the last."""
    numbers = range(s.experts.every, s.layers, s.experts.every) if s.experts is not None else ()
    made = {number: build_experts(s.experts, s.dim, hidden=s.dim) for number in numbers if s.experts is not None}
    return Between(made, dropout=s.dropout)


def connections(s: RecurrentReading | RecurrentWriting) -> Way:
    return "fast-forward" if s.fast_forward else "residual" if s.residual else "none"


def check_copied_states(recipe: Recipe) -> bool:
    """Whether all final states of a recurrent reader go to the writer; both need the same cells, layers and width.

    A user's own writer may want them, so it gets them.
    """
    writer, reader = recipe.writer.token_stack, recipe.reader.token_stack
    if writer is None or not writer.copies_states:
        return recipe.writer.is_custom
    got = None if reader is None else reader.recurrent_shape
    if got is None:
        raise SaccadeError('writer.stack.first = "copied" needs a recurrent reader; set first = "predicted"')
    wanted = writer.recurrent_shape
    if wanted != got:
        raise SaccadeError(
            'writer.stack.first = "copied" needs a reader with the writer\'s cell, layers and dim '
            f'{wanted}, got {got}; make them equal, or set first = "predicted"'
        )
    return True
