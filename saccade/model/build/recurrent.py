"""Builds recurrent stacks from their tables of a recipe."""

from functools import partial
from typing import Any

from saccade.config.schema import Recipe, RecurrentReaderStack, RecurrentWriterStack
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import LocalWindow, NeighborhoodAttention, SoftAttention
from saccade.layers.attention.scores import Bilinear, Concat, Dot
from saccade.layers.blocks.experts import InterLayerExperts
from saccade.layers.blocks.recurrence import BahdanauRecurrence, FixedContextRecurrence, LuongRecurrence
from saccade.layers.blocks.recurrent import Directions, LayerConnection, RecurrentStack, TwoColumns
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.model.build.feedforward import build_experts
from saccade.model.build.options import Options
from saccade.model.build.scores import build_score

DIRECTIONS: dict[bool | str, Directions] = {
    False: "one",
    True: "both",
    "first": "both at first",
    "alternate": "in turn",
}


def build_recurrent_reader(s: RecurrentReaderStack, options: Options) -> RecurrentStack | TwoColumns:
    check_recompute(options)
    build_column = partial(
        RecurrentStack,
        cell=s.cell,
        layers=s.layers,
        directions="full at first" if s.full_directions else DIRECTIONS[s.bidirectional],
        connections=get_connections(s),
        dropout=s.dropout,
    )
    stack: RecurrentStack | TwoColumns
    if s.columns == 1:
        stack = build_column(list_widths(s), reverse=s.reverse, between=build_between(s))
    else:
        input_dim, dim, cell_dim = list_widths(s)
        widths = (input_dim, dim // 2, cell_dim // 2)
        stack = TwoColumns(*(build_column(widths, reverse=reverse) for reverse in (False, True)))
    return stack if options.copies_states else stack.discard_cell_states()


def build_recurrent_writer(s: RecurrentWriterStack, options: Options, *, memory_dim: int | None) -> RecurrentWriter:
    """Build the recurrent stack of a writer; with `memory_dim` None it does not attend to a memory."""
    check_recompute(options)
    first = InitialState(
        list_widths(s), cell=s.cell, layers=s.layers, memory_dim=memory_dim, context=s.context, initial=s.initial_state
    )
    return RecurrentWriter(
        build_recurrence(s, memory_dim), first=first, dim=s.width, input_dim=s.input_dim or s.dim,
        between=build_between(s), dropout=s.dropout,
    )  # fmt: skip


def list_widths(s: RecurrentReaderStack | RecurrentWriterStack) -> tuple[int, int, int]:
    """The widths of the inputs, of the hidden states and of the cell states."""
    return s.input_dim or s.dim, s.dim, s.cell_dim or s.dim


def check_recompute(options: Options) -> None:
    if options.train.recompute:
        raise SaccadeError("train.recompute=true is for Transformer stacks, got a recurrent one; leave it out")


def build_recurrence(
    s: RecurrentWriterStack, memory_dim: int | None
) -> FixedContextRecurrence | BahdanauRecurrence | LuongRecurrence:
    widths = list_widths(s)
    layers: Any = {"cell": s.cell, "layers": s.layers, "connections": get_connections(s), "dropout": s.dropout}
    if s.attention == "none":
        return FixedContextRecurrence(widths, memory_dim=memory_dim if s.input_feeding and memory_dim else 0, **layers)
    if memory_dim is None:
        raise SaccadeError(f'attention = "{s.attention}" needs a reader to attend to; set attention = "none"')
    if s.attends_before_step:
        recurrence = BahdanauRecurrence(
            widths, memory_dim=memory_dim, gate=s.context_gate, hard=s.hard_attention, **layers
        )
        if s.score is not None:
            recurrence.cross.set_score(build_score(s.score, s.dim, memory_dim))
        if s.maxout_dim is not None:
            recurrence.use_maxout(s.maxout_dim)
        recurrence.cross.local = build_local(s)
        return recurrence
    kind = s.attention if s.score is None else s.score.kind
    if kind in ("dot", "scaled-dot") and memory_dim != s.dim:
        raise SaccadeError(
            f'attention = "{kind}" needs a writer as wide as its reader, got {s.dim} and {memory_dim}; set the same '
            'stack.dim, or attention = "general"'
        )
    cross = build_cross(s, memory_dim)
    cross.local = build_local(s)
    return LuongRecurrence(widths, memory_dim=memory_dim, cross=cross, input_feeding=s.input_feeding, **layers)


def build_cross(s: RecurrentWriterStack, memory_dim: int) -> SoftAttention:
    """Build attention that is computed after each step."""
    match s.attention:
        case "dot":
            return SoftAttention(Dot())
        case "general":
            return SoftAttention(Bilinear(s.dim, key_dim=memory_dim))
        case "concat":
            return SoftAttention(Concat(s.dim, key_dim=memory_dim, hidden_dim=s.dim))
        case "around":
            return NeighborhoodAttention(s.dim, key_dim=memory_dim, hidden_dim=s.dim)
    return SoftAttention(build_score(s.score, s.dim, memory_dim))


def build_local(s: RecurrentWriterStack) -> LocalWindow | None:
    """Build the window of local attention, where the recipe asks for it."""
    if s.local is None:
        return None
    return LocalWindow(s.dim, radius=s.local.window, predictive=s.local.kind == "predictive")


def build_between(s: RecurrentReaderStack | RecurrentWriterStack) -> InterLayerExperts:
    """Build the mixtures of experts above every n-th layer except the last."""
    numbers = range(s.experts.every_n_layers, s.layers, s.experts.every_n_layers) if s.experts is not None else ()
    experts = {number: build_experts(s.experts, s.dim, hidden=s.dim) for number in numbers if s.experts is not None}
    return InterLayerExperts(experts, dropout=s.dropout)


def get_connections(s: RecurrentReaderStack | RecurrentWriterStack) -> LayerConnection:
    return "fast-forward" if s.fast_forward else "residual" if s.residual else "none"


def should_copy_states(recipe: Recipe) -> bool:
    """Whether the writer starts from the final states of a recurrent reader; checks that their shapes match.

    A custom writer always gets them.
    """
    writer, reader = recipe.writer.token_stack, recipe.reader.token_stack
    if writer is None or not writer.copies_states:
        return recipe.writer.is_custom
    found = None if reader is None else reader.recurrent_shape
    if found is None:
        raise SaccadeError(
            'writer.stack.initial_state = "copied" needs a recurrent reader; set initial_state = "predicted"'
        )
    expected = writer.recurrent_shape
    if expected != found:
        raise SaccadeError(
            'writer.stack.initial_state = "copied" needs a reader with the writer\'s cell, layers, dim and cell_dim '
            f'{expected}, got {found}; make them equal, or set initial_state = "predicted"'
        )
    return True
