"""Readers of pictures: cells, where they are, and a stack over them."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack, get_capabilities
from saccade.layers.attention import masks
from saccade.layers.audio.downsampling import Stem
from saccade.layers.auxiliary import Aux, merge_aux
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.vision.patches import Picture


class MediaReader(nn.Module):
    """What readers of pictures and sound have in common: they embed no tokens and read nothing twice."""

    embedding = None
    again = None


class PictureReader(MediaReader):
    """Cells of a picture through a stack, where there is one; `first` is a learned vector that stands before them.

    `columns` is a recurrent stack over the largest number of each column, from left to right: its last state stands
    for the whole picture (Li et al. 2019, section 3.2).
    """

    def __init__(
        self,
        cells: nn.Module,
        stack: Stack | None,
        *,
        dim: int,
        grid: tuple[int, int],
        positions: nn.Module | None,
        first: bool = False,
        columns: Stack | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.cells = cells
        self.stack: Any = stack
        self.positions, self.dim, self.grid = positions, dim, grid
        self.first = nn.Parameter(torch.empty(dim)) if first else None
        if self.first is not None:
            nn.init.normal_(self.first, std=dim**-0.5)
        self.dropout = Dropout(dropout)

    @property
    def capabilities(self) -> Capabilities:
        """Pictures have one size; a stack over their cells must never synchronize with the device."""
        own = Capabilities(static_shapes=True, fixed_inputs=True)
        if self.stack is None:
            return own
        found = get_capabilities(self.stack, "stack")
        return replace(own, static_shapes=found.static_shapes, reasons=found.reasons)

    def forward(self, pictures: Picture, mask: Bool[Tensor, "B S"]) -> Memory:
        """All states are real, and `mask` says so."""
        x = self.cells(pictures)
        if self.first is not None:
            x = torch.cat((self.first.to(x.dtype).expand(len(x), 1, -1), x), 1)
        if self.positions is not None:
            x = x + self.positions(masks.positions(x.shape[1], x.device)).to(x.dtype)
        x = self.dropout(x)
        final, aux = None, Aux()
        if self.stack is not None:
            x, _, _, aux = self.stack(x, None)
        if self.columns is not None:
            _, _, final, more = self.columns(x.unflatten(1, self.grid).amax(1), None)
            aux = merge_aux(aux, more)
        return Memory(x, mask, final=final, grid=self.grid, aux=aux)


# ---- The reader of sound: frames -> Memory.


class FrameReader(MediaReader):
    """Sound: a stem that makes fewer and wider frames, positions, then a stack that may look in both directions."""

    def __init__(self, stem: Stem, stack: Stack, *, positions: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem, self.stack, self.positions, self.dim = stem, stack, positions, stack.dim
        self.dropout = Dropout(dropout)

    def forward(self, frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"]) -> Memory:
        x, mask = self.stem(frames, mask)
        if self.positions is not None:
            x = x + self.positions(masks.positions(x.shape[1], x.device)).to(x.dtype)
        states, mask, final, aux = self.stack(self.dropout(x), mask)
        return Memory(states, mask, final=final, grid=(1, states.shape[1]), aux=aux)


# ---- The reader of a picture and of a question about it.


class JoinedReader(MediaReader):
    """Two readers, and what makes one Memory of both; without `look` the picture is not read at all.

    In training the share `blind` of the questions sees nothing of its picture.
    """

    stack = None  # each of the two has its own

    def __init__(self, look: Any, ask: Any, join: Any, *, grid: tuple[int, int], blind: float = 0.0) -> None:
        super().__init__()
        self.look, self.ask, self.join, self.grid, self.dim = look, ask, join, grid, join.dim
        self.blind = blind

    def forward(
        self, pictures: Picture, cells: Bool[Tensor, "B S"], ids: Int[Tensor, "B T"], words: Bool[Tensor, "B T"]
    ) -> Memory:
        look = None if self.look is None else self.seen(pictures, cells)
        ask = self.ask(ids, words)
        memory = self.join(look, ask)
        parts = [part.aux for part in (look, ask, memory) if part is not None]
        return replace(memory, aux=merge_aux(*parts))

    def seen(self, pictures: Picture, cells: Bool[Tensor, "B S"]) -> Memory:
        look: Memory = self.look(pictures, cells)
        if not (self.training and self.blind):
            return look
        blind = torch.rand(len(cells), 1, device=cells.device) < self.blind
        return replace(look, states=look.states.masked_fill(blind[..., None], 0.0), mask=cells & ~blind)
