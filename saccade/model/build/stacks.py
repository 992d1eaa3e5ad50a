"""Builds a stack from its table of a recipe, by kind; a custom stack is called with its settings."""

from collections.abc import Callable, Mapping
from typing import Any

from saccade.config import schema
from saccade.config.protocols import Stack
from saccade.errors import SaccadeError
from saccade.model.build.convolution import build_convolution
from saccade.model.build.options import Options, build_custom
from saccade.model.build.recurrent import build_recurrent_reader, build_recurrent_writer
from saccade.model.build.transformer import build_transformer

Builder = Callable[[Any, Options, int | None, bool], Any]  # table of the part, options, width of memory, causal


def build_reader_stack(table: schema.TokenReader, options: Options, *, causal: bool = False) -> Any:
    return build_stack(table, READERS, options, memory_dim=None, causal=causal)


def build_writer_stack(table: Any, options: Options, *, memory_dim: int | None, causal: bool = True) -> Any:
    """Build a stack that attends to a memory of width `memory_dim`, or to none where that is None."""
    return build_stack(table, WRITERS, options, memory_dim=memory_dim, causal=causal)


def build_stack(
    table: Any, builders: Mapping[str, Builder], options: Options, *, memory_dim: int | None, causal: bool
) -> Any:
    settings = table.stack
    if settings.kind not in builders:
        sizes = () if memory_dim is None and not causal else (memory_dim or 0,)
        return build_custom(settings, *sizes)
    if settings.kind != "transformer" and table.positions.inside_attention:
        raise SaccadeError(
            f'positions.kind = "{table.positions.kind}" acts inside self-attention, which a {settings.kind} stack does '
            'not have; use "sinusoidal", "learned" or "none"'
        )
    return builders[settings.kind](table, options, memory_dim, causal)


def build_transformer_stack(table: Any, options: Options, memory_dim: int | None, causal: bool) -> Any:
    return build_transformer(table.stack, table.positions, memory_dim=memory_dim, causal=causal, train=options.train)


def build_convolution_stack(table: Any, options: Options, memory_dim: int | None, causal: bool) -> Any:
    recompute = options.train.recompute
    return build_convolution(table.stack, memory_dim=memory_dim, causal=causal, recompute=recompute)


SHARED: dict[str, Builder] = {"transformer": build_transformer_stack, "convolution": build_convolution_stack}
READERS = SHARED | {"recurrent": lambda table, options, _, __: build_recurrent_reader(table.stack, options)}
WRITERS = SHARED | {
    "recurrent": lambda table, options, memory_dim, _: build_recurrent_writer(
        table.stack, options, memory_dim=memory_dim
    )
}


def get_input_dim(stack: Stack) -> int:
    """Width of the input of a stack: its attribute `input_dim` if it declares one, else that of its output."""
    return int(getattr(stack, "input_dim", stack.dim))
