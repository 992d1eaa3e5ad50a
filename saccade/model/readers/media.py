"""Readers of pictures, of sound, and of pictures with questions."""

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
    """Base class of readers of pictures and sound: no token embedding and no second pass."""

    embedding = None
    again = None


class PictureReader(MediaReader):
    """An image encoder: feature extractor `cells`, positions and an optional stack over the feature vectors.

    `class_token` prepends a learned vector (stored as `first`). `columns` is a recurrent stack over the maxima of the
    columns of the feature map, from left to right; its last state summarizes the picture (Li et al. 2019, section 3.2).
    """

    def __init__(
        self,
        cells: nn.Module,
        stack: Stack | None,
        *,
        dim: int,
        grid: tuple[int, int],
        positions: nn.Module | None,
        class_token: bool = False,
        columns: Stack | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.cells = cells
        self.stack = stack
        self.positions, self.dim, self.grid = positions, dim, grid
        self.first = nn.Parameter(torch.empty(dim)) if class_token else None
        if self.first is not None:
            nn.init.normal_(self.first, std=dim**-0.5)
        self.dropout = Dropout(dropout)

    @property
    def capabilities(self) -> Capabilities:
        """Pictures have one size, so shapes are static if the stack over the feature vectors is."""
        own = Capabilities(static_shapes=True, fixed_inputs=True, tensor_parallel=self.columns is None)
        if self.stack is None:
            return own
        found = get_capabilities(self.stack, "stack")
        splits = found.tensor_parallel and self.columns is None
        return replace(own, static_shapes=found.static_shapes, tensor_parallel=splits, reasons=found.reasons)

    def forward(self, pictures: Picture, mask: Bool[Tensor, "B S"]) -> Memory:
        """`mask` is true everywhere: pictures have no padding."""
        x = self.cells(pictures)
        if self.first is not None:
            x = torch.cat((self.first.to(x.dtype).expand(len(x), 1, -1), x), 1)
        if self.positions is not None:
            x = x + self.positions(masks.make_positions(x.shape[1], x.device)).to(x.dtype)
        x = self.dropout(x)
        final, aux = None, Aux()
        if self.stack is not None:
            x, _, _, aux = self.stack(x, None)
        if self.columns is not None:
            _, _, final, columns_aux = self.columns(x.unflatten(1, self.grid).amax(1), None)
            aux = merge_aux(aux, columns_aux)
        return Memory(x, mask, final=final, grid=self.grid, aux=aux)


# ---- sound


class FrameReader(MediaReader):
    """An audio encoder: a convolutional stem that downsamples the frames, positions, then a stack."""

    def __init__(self, stem: Stem, stack: Stack, *, positions: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem, self.stack, self.positions, self.dim = stem, stack, positions, stack.dim
        self.dropout = Dropout(dropout)

    @property
    def capabilities(self) -> Capabilities:
        found = get_capabilities(self.stack, "stack")
        return Capabilities(tensor_parallel=found.tensor_parallel, reasons=found.reasons)

    def forward(self, frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"]) -> Memory:
        x, mask = self.stem(frames, mask)
        if self.positions is not None:
            x = x + self.positions(masks.make_positions(x.shape[1], x.device)).to(x.dtype)
        states, mask, final, aux = self.stack(self.dropout(x), mask)
        return Memory(states, mask, final=final, grid=(1, states.shape[1]), aux=aux)


# ---- pictures with questions


class JoinedReader(MediaReader):
    """A reader of pictures (`look`), a reader of questions (`ask`), and a module `join` that merges their memories.

    Without `picture_reader` only the question is read. `picture_dropout` is the probability that an example's picture
    is masked during training.
    """

    stack = None  # each of the two readers has its own

    def __init__(
        self,
        picture_reader: Any,
        question_reader: Any,
        join: Any,
        *,
        grid: tuple[int, int],
        picture_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.look, self.ask, self.join, self.grid, self.dim = picture_reader, question_reader, join, grid, join.dim
        self.picture_dropout = picture_dropout

    def forward(
        self, pictures: Picture, mask: Bool[Tensor, "B S"], ids: Int[Tensor, "B T"], question_mask: Bool[Tensor, "B T"]
    ) -> Memory:
        picture = None if self.look is None else self.read_picture(pictures, mask)
        question = self.ask(ids, question_mask)
        memory = self.join(picture, question)
        parts = [part.aux for part in (picture, question, memory) if part is not None]
        return replace(memory, aux=merge_aux(*parts))

    def read_picture(self, pictures: Picture, mask: Bool[Tensor, "B S"]) -> Memory:
        """Encode the pictures; in training, zero and mask those that `picture_dropout` selects."""
        memory: Memory = self.look(pictures, mask)
        if not (self.training and self.picture_dropout):
            return memory
        dropped = torch.rand(len(mask), 1, device=mask.device) < self.picture_dropout
        return replace(memory, states=memory.states.masked_fill(dropped[..., None], 0.0), mask=mask & ~dropped)
