"""Several streams of a Q-network, each with its own channels of a picture, whose Q-values are averaged.

MDARQN (Qureshi et al. 2017, section III) has two: one of grayscale and one of depth pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.errors import SaccadeError
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.recurrent_writer import RecurrentWriter
from saccade.layers.memory import Memory
from saccade.model.build.model import WriterContext, build_reader
from saccade.model.build.recurrent import build_recurrent_writer
from saccade.model.model import Model
from saccade.model.readers.media import MediaReader, PictureReader
from saccade.model.writers.tokens import Step
from saccade_worlds import tables
from saccade_worlds.playing.writer import ValuesWriter

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


class StreamsReader(MediaReader):
    """One image encoder per stream; their cells are concatenated, stream after stream."""

    def __init__(self, readers: Sequence[PictureReader], streams: Sequence[str]) -> None:
        super().__init__()
        self.readers: Any = nn.ModuleList(readers)
        self.streams, self.dim, self.grid = tuple(streams), readers[0].dim, readers[0].grid

    @property
    def stack(self) -> Any:
        """The stack over the cells of the first stream, whose shape the others share; None if there is none."""
        return self.readers[0].stack

    @property
    def capabilities(self) -> Capabilities:
        """Those of the encoders, which have the same settings."""
        found: Capabilities = self.readers[0].capabilities
        return found

    def forward(
        self, pictures: UInt8[Tensor, "B C Y X"] | Float[Tensor, "B C Y X"], mask: Bool[Tensor, "B S"]
    ) -> Memory:
        parts = [
            reader(select_channels(pictures, name), mask).states
            for reader, name in zip(self.readers, self.streams, strict=True)
        ]
        return Memory(torch.cat(parts, 1), mask.repeat(1, len(parts)), grid=self.grid)


class StreamsWriter(nn.Module):
    """One recurrent attention Q-network per stream; the value of an action is the mean of theirs."""

    capabilities = Capabilities(aux=True)

    def __init__(self, writers: Sequence[ValuesWriter]) -> None:
        super().__init__()
        self.writers: Any = nn.ModuleList(writers)

    @property
    def dim(self) -> int:
        return int(self.writers[0].dim)

    @property
    def stack(self) -> RecurrentWriter:
        """The recurrent stack of the first stream, whose shape the others share."""
        found: RecurrentWriter = self.writers[0].stack
        return found

    @property
    def output(self) -> nn.Linear:
        """The output layer of the first stream."""
        found: nn.Linear = self.writers[0].output
        return found

    def forward(self, actions: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T A"]:
        """Action values at each step of whole episodes, as those of `ValuesWriter`."""
        return self.write(actions, mask, memory)[0]

    def write(
        self, actions: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], memory: Memory
    ) -> tuple[Float[Tensor, "B T A"], Aux]:
        parts = split_streams(memory, len(self.writers))
        values = [writer(actions, mask, part) for writer, part in zip(self.writers, parts, strict=True)]
        return torch.stack(values).mean(0), {}

    def step(
        self, previous_actions: Int[Tensor, " B"], memory: Memory, state: StreamsState | None, *, align: bool = False
    ) -> Step:
        """Action values for the next picture; with `align`, also the attention weights of all streams (B, N, S)."""
        parts = split_streams(memory, len(self.writers))
        states = [None] * len(parts) if state is None else state.streams
        steps = [
            writer.step(previous_actions, part, one, align=align)
            for writer, part, one in zip(self.writers, parts, states, strict=True)
        ]
        weights = [step.weights for step in steps if step.weights is not None]
        return Step(
            torch.stack([step.logits for step in steps]).mean(0),
            StreamsState(tuple(step.state for step in steps)),
            torch.stack(weights, 1) if weights else None,
        )


@dataclass(frozen=True)
class StreamsState:
    """The recurrent state of each stream."""

    streams: tuple[Any, ...]

    def reorder(self, indices: Int[Tensor, " C"]) -> StreamsState:
        return StreamsState(tuple(stream.reorder(indices) for stream in self.streams))


def split_streams(memory: Memory, count: int) -> list[Memory]:
    """Return the memory of each stream."""
    parts = zip(memory.states.chunk(count, 1), memory.padding.chunk(count, 1), strict=True)
    return [replace(memory, states=states, mask=mask) for states, mask in parts]


def select_channels(pictures: Tensor, stream: str) -> Tensor:
    """Return the channels of a stream as pictures of three channels, equal ones for grayscale and depth."""
    if stream == "color":
        return pictures[:, :3]
    if stream == "depth":
        if pictures.shape[1] < 4:
            raise SaccadeError(
                'the stream "depth" needs pictures of four channels (red, green, blue, depth), got '
                f"{pictures.shape[1]}; play in embedded:waiting-room, or leave it out of writer.streams"
            )
        return pictures[:, 3:4].expand(-1, 3, -1, -1)
    weights = torch.tensor(LUMINANCE, device=pictures.device)[:, None, None]
    gray = (pictures[:, :3] * weights).sum(1, keepdim=True)
    return gray.to(pictures.dtype).expand(-1, 3, -1, -1)


def build_value_model(table: tables.ValuesWriter, context: WriterContext) -> Model:
    """Build the network of each stream; without `streams`, that of color pictures is the whole model."""
    readers = [context.reader]
    readers += [build_reader(context.recipe.reader, 0, context.options) for _ in table.streams[1:]]
    writers = [build_values_writer(table, context) for _ in table.streams]
    if table.streams == ("color",):
        return Model(readers[0], writers[0])
    return Model(StreamsReader(readers, table.streams), StreamsWriter(writers))


def build_values_writer(table: tables.ValuesWriter, context: WriterContext) -> ValuesWriter:
    recurrence: Any = build_recurrent_writer(table.stack, context.options, memory_dim=context.reader.dim)
    return ValuesWriter(recurrence, size=context.output_size)
