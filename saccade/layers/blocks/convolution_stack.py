"""Convolutional blocks one after the other, over a whole text or word by word (Gehring et al. 2017; Kalchbrenner et al.
2016): the same family serves reader and writer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.convolution import HALF, KEPT, RECOMPUTED, Matrices, Product, Read, neighbours
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory

ROUNDING = 1e-3  # of a position: 1.2 x 5 is 6 in every precision


@dataclass(frozen=True)
class ConvolutionState:
    """Where a convolutional writer stands: the last inputs of each kernel, and what is computed only once."""

    own: tuple[Float[Tensor, "B _ _"], ...]  # for each block, as many positions as its kernel reaches back
    matrices: tuple[Matrices, ...]  # of the first product, of each block, and of the last product
    read: Read | None  # for blocks that attend
    places: Float[Tensor, "B S D"] | None  # what is added at each position where no block attends
    lengths: Int[Tensor, " B"]  # positions written so far, row by row

    def reorder(self, indices: Int[Tensor, " C"]) -> "ConvolutionState":
        """The state whose row i is row indices[i] of this one; fewer indices let finished rows leave."""
        return replace(
            self,
            own=tuple(part.index_select(0, indices) for part in self.own),
            read=None if self.read is None else self.read.rows(indices),
            places=None if self.places is None else self.places.index_select(0, indices),
            lengths=self.lengths.index_select(0, indices),
        )


class ConvolutionStack(nn.Module):
    """Blocks between two products, from the width of embeddings to that of the blocks and back, or before one norm.

    `causal` for a writer. Where none of its blocks attends, memory's state at position i is added to what is written at
    position i (ByteNet). A reader with `unfold` = (a, b) gives a |s| + b states for |s| tokens, so that there is one
    for each word of an output longer than the input (dynamic unfolding, Kalchbrenner et al. 2016, section 3.2).
    """

    operation = "convolution"  # for counts of parameters by operation
    capabilities = Capabilities(static_shapes=True)

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        *,
        dim: int,
        ends: tuple[Product, Product] | None = None,
        causal: bool = False,
        unfold: tuple[float, float] = (1.0, 0.0),
        dropout: float = 0.0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # which are called alike, which ModuleList's type cannot say
        self.ends: Any = nn.ModuleList(ends or ())
        self.norm = nn.Identity() if ends else nn.LayerNorm(dim)
        self.dim, self.causal, self.unfold, self.recompute = dim, causal, unfold, recompute
        self.dropout = Dropout(dropout if causal else 0.0)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: ConvolutionState | None = None,
    ) -> tuple[Float[Tensor, "B N D"], Any, ConvolutionState | None, Aux]:
        """A reader's `values` are the sums of its states and of the embeddings that it got, where it has two ends."""
        if state is not None:
            return *self._step(x, mask, state), {}
        if not self.causal and mask is not None:
            x, mask = self.unfolded(x, mask)
        y = self._whole(x, mask, memory)
        return y, mask, None, {"values": (y + x) * HALF} if self.ends and not self.causal else {}

    def _whole(self, x: Tensor, mask: Tensor | None, memory: Memory | None) -> Float[Tensor, "B T D"]:
        matrices = self._outer()
        read, places = self._seen(memory)
        y = x if places is None else x + F.pad(places, (0, 0, 0, x.shape[1] - places.shape[1]))  # or cut
        y = self._enter(y, matrices)
        real = None if self.causal else mask  # padding stands on the right, where no writer looks
        over = RECOMPUTED if self.recompute and self.training else KEPT
        for block in self.blocks:
            y = over(block, block.dilation, y, real, self.causal, x, read)
        return self._leave(y, matrices)

    def _step(
        self, x: Tensor, mask: Tensor | None, state: ConvolutionState
    ) -> tuple[Float[Tensor, "B n D"], Tensor | None, ConvolutionState]:
        first, *inner, last = state.matrices
        y = x if state.places is None else x + self._at(state.places, state.lengths, x.shape[1])
        y, own = self._enter(y, (first, last)), []
        for block, past, matrices in zip(self.blocks, state.own, inner, strict=True):

            def around(z: Tensor, block: Any = block, past: Tensor = past) -> Tensor:
                wide = torch.cat((past, z.to(past.dtype)), 1)  # autocast may have made it narrower
                own.append(wide[:, wide.shape[1] - past.shape[1] :])
                return neighbours(wide, kernel=block.kernel, dilation=block.dilation)

            y = block(y, around, matrices, x, state.read)
        state = replace(state, own=tuple(own), lengths=state.lengths + x.shape[1])
        return self._leave(y, (first, last)), mask, state

    def unfolded(
        self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B N D"], Bool[Tensor, "B N"]]:
        """Zeros behind each text, up to a |s| + b; without that the same."""
        a, b = self.unfold
        if (a, b) == (1.0, 0.0):
            return x, mask
        longest = math.ceil(a * x.shape[1] + b - ROUNDING)
        lengths = torch.ceil(a * mask.sum(1) + b - ROUNDING)
        x = F.pad(x.masked_fill(~mask[..., None], 0.0), (0, 0, 0, longest - x.shape[1]))
        return x, torch.arange(longest, device=x.device) < lengths[:, None]

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> ConvolutionState:
        """The state before the first position; it takes as much room for any number of positions."""
        first, last = self._outer()
        like = next(self.parameters())
        read, places = self._seen(memory)
        return ConvolutionState(
            own=tuple(like.new_zeros(rows, (b.kernel - 1) * b.dilation, b.width) for b in self.blocks),
            matrices=(first, *(block.matrices() for block in self.blocks), last),
            read=read,
            places=places,
            lengths=torch.zeros(rows, dtype=torch.long, device=like.device),
        )

    # ---- inside

    def _outer(self) -> tuple[Matrices, Matrices]:
        """The matrices of the first and of the last product."""
        return ((self.ends[0].matrix(),), (self.ends[1].matrix(),)) if self.ends else ((), ())

    def _enter(self, x: Tensor, outer: tuple[Matrices, Matrices]) -> Tensor:
        """What runs along is as wide as the embeddings, whatever autocast makes of a product."""
        return self.ends[0](x, *outer[0]).to(x.dtype) if self.ends else x

    def _leave(self, x: Tensor, outer: tuple[Matrices, Matrices]) -> Tensor:
        return self.dropout(self.norm(self.ends[1](x, *outer[1]) if self.ends else x))

    def _seen(self, memory: Memory | None) -> tuple[Read | None, Float[Tensor, "B S D"] | None]:
        """What blocks attend to; or, where none does, what is added place by place."""
        if memory is None:
            return None, None
        if any(block.cross is not None for block in self.blocks):
            return Read.of(memory), None
        return None, memory.states.masked_fill(~memory.padding[..., None], 0.0)

    def _at(self, places: Float[Tensor, "B S D"], lengths: Int[Tensor, " B"], n: int) -> Float[Tensor, "B n D"]:
        """The next n places of each row; zeros where there are no more."""
        at = lengths[:, None] + torch.arange(n, device=lengths.device)
        chosen = at.clamp(max=places.shape[1] - 1)[..., None].expand(-1, -1, places.shape[2])
        return places.gather(1, chosen).masked_fill((at >= places.shape[1])[..., None], 0.0)
