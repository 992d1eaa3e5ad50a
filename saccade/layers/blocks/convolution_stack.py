"""Stacks of convolutional blocks for readers and writers, over whole sequences or token by token.

ConvS2S (Gehring et al. 2017) and ByteNet (Kalchbrenner et al. 2016).
"""

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
from saccade.layers.blocks.convolution import (
    CHECKPOINTED_BLOCK,
    PLAIN_BLOCK,
    SQRT_HALF,
    AttentionSource,
    WeightNormLinear,
    Weights,
    gather_neighbors,
)
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory

CEIL_TOLERANCE = 1e-3  # in positions: 1.2 x 5 is 6 in every precision


@dataclass(frozen=True)
class ConvolutionState:
    """The decoding state of a convolutional writer: the last inputs of each convolution, and what is computed once."""

    histories: tuple[Float[Tensor, "B _ _"], ...]  # of each block: the last inputs that the next convolution needs
    weights: tuple[Weights, ...]  # of the input projection, of each block, and of the output projection
    source: AttentionSource | None  # for blocks with attention
    aligned_memory: Float[Tensor, "B S D"] | None  # without attention: memory, added position by position
    lengths: Int[Tensor, " B"]  # positions decoded so far

    def reorder(self, indices: Int[Tensor, " C"]) -> "ConvolutionState":
        """The state whose row i is row indices[i] of this one, as beam search needs it; fewer indices drop rows."""
        return replace(
            self,
            histories=tuple(part.index_select(0, indices) for part in self.histories),
            source=None if self.source is None else self.source.select_rows(indices),
            aligned_memory=None if self.aligned_memory is None else self.aligned_memory.index_select(0, indices),
            lengths=self.lengths.index_select(0, indices),
        )


class ConvolutionStack(nn.Module):
    """Convolutional blocks between two projections (`ends`) to and from the width of the blocks, or with a final norm.

    `causal` for a writer. If none of its blocks has attention, memory's state at position i is added to the input at
    position i (ByteNet). A reader with `unfold` = (a, b) returns a |s| + b states for |s| tokens, enough for an output
    longer than the input (dynamic unfolding, Kalchbrenner et al. 2016, section 3.2).
    """

    operation = "convolution"  # for counts of parameters by operation

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        *,
        dim: int,
        ends: tuple[WeightNormLinear, WeightNormLinear] | None = None,
        causal: bool = False,
        unfold: tuple[float, float] = (1.0, 0.0),
        dropout: float = 0.0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # Any: ModuleList does not know the type of its items
        self.ends: Any = nn.ModuleList(ends or ())
        self.norm = nn.Identity() if ends else nn.LayerNorm(dim)
        self.dim, self.causal, self.unfold, self.recompute = dim, causal, unfold, recompute
        self.dropout = Dropout(dropout if causal else 0.0)

    @property
    def score_problem(self) -> str:
        """Why torch.compile and CUDA graphs cannot hold the score of a block; empty where they can."""
        attentions = (block.cross for block in self.blocks if block.cross is not None)
        return next((cross.score_problem for cross in attentions if cross.score_problem), "")

    @property
    def capabilities(self) -> Capabilities:
        """Static shapes, unless its attention has a user's score that does not declare them."""
        problem = self.score_problem
        return Capabilities(static_shapes=not problem, reasons={"static_shapes": problem} if problem else {})

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: ConvolutionState | None = None,
    ) -> tuple[Float[Tensor, "B N D"], Any, ConvolutionState | None, Aux]:
        """Hidden states, mask, state and aux; the aux of a reader with `ends` has `values`, states plus inputs."""
        if state is not None:
            return *self._step(x, mask, state), {}
        if not self.causal and mask is not None:
            x, mask = self.unfold_sequences(x, mask)
        y = self._run_all(x, mask, memory)
        return y, mask, None, {"values": (y + x) * SQRT_HALF} if self.ends and not self.causal else {}

    def _run_all(self, x: Tensor, mask: Tensor | None, memory: Memory | None) -> Float[Tensor, "B T D"]:
        weights = self._compute_end_weights()
        source, aligned = self._prepare_memory(memory)
        y = x if aligned is None else x + F.pad(aligned, (0, 0, 0, x.shape[1] - aligned.shape[1]))  # pads or truncates
        y = self._project_in(y, weights)
        real = None if self.causal else mask  # padding is on the right, which causal convolutions do not see
        region_of_block = CHECKPOINTED_BLOCK if self.recompute and self.training else PLAIN_BLOCK
        run_block = region_of_block.select(not self.score_problem)
        for block in self.blocks:
            y = run_block(block, block.dilation, y, real, self.causal, x, source)
        return self._project_out(y, weights)

    def _step(
        self, x: Tensor, mask: Tensor | None, state: ConvolutionState
    ) -> tuple[Float[Tensor, "B n D"], Tensor | None, ConvolutionState]:
        first, *inner, last = state.weights
        aligned = state.aligned_memory
        y = x if aligned is None else x + self._gather_next(aligned, state.lengths, x.shape[1])
        y, histories = self._project_in(y, (first, last)), []
        for block, past, weights in zip(self.blocks, state.histories, inner, strict=True):

            def gather(z: Tensor, block: Any = block, past: Tensor = past) -> Tensor:
                extended = torch.cat((past, z.to(past.dtype)), 1)  # autocast may have produced a lower precision
                histories.append(extended[:, extended.shape[1] - past.shape[1] :])
                return gather_neighbors(extended, kernel=block.kernel, dilation=block.dilation)

            y = block(y, gather, weights, x, state.source)
        state = replace(state, histories=tuple(histories), lengths=state.lengths + x.shape[1])
        return self._project_out(y, (first, last)), mask, state

    def unfold_sequences(
        self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B N D"], Bool[Tensor, "B N"]]:
        """Append zeros to each sequence of length |s| up to a |s| + b positions (dynamic unfolding)."""
        a, b = self.unfold
        if (a, b) == (1.0, 0.0):
            return x, mask
        max_length = math.ceil(a * x.shape[1] + b - CEIL_TOLERANCE)
        lengths = torch.ceil(a * mask.sum(1) + b - CEIL_TOLERANCE)
        x = F.pad(x.masked_fill(~mask[..., None], 0.0), (0, 0, 0, max_length - x.shape[1]))
        return x, torch.arange(max_length, device=x.device) < lengths[:, None]

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> ConvolutionState:
        """The state before the first position; its size does not depend on `capacity`."""
        first, last = self._compute_end_weights()
        like = next(self.parameters())
        source, aligned_memory = self._prepare_memory(memory)
        return ConvolutionState(
            histories=tuple(like.new_zeros(rows, (b.kernel - 1) * b.dilation, b.width) for b in self.blocks),
            weights=(first, *(block.compute_weights() for block in self.blocks), last),
            source=source,
            aligned_memory=aligned_memory,
            lengths=torch.zeros(rows, dtype=torch.long, device=like.device),
        )

    def _compute_end_weights(self) -> tuple[Weights, Weights]:
        """The weights of the input and the output projection."""
        return ((self.ends[0].compute_weight(),), (self.ends[1].compute_weight(),)) if self.ends else ((), ())

    def _project_in(self, x: Tensor, outer: tuple[Weights, Weights]) -> Tensor:
        """The residual stream keeps the dtype of the embeddings, whatever autocast makes of the projection."""
        return self.ends[0](x, *outer[0]).to(x.dtype) if self.ends else x

    def _project_out(self, x: Tensor, outer: tuple[Weights, Weights]) -> Tensor:
        return self.dropout(self.norm(self.ends[1](x, *outer[1]) if self.ends else x))

    def _prepare_memory(self, memory: Memory | None) -> tuple[AttentionSource | None, Float[Tensor, "B S D"] | None]:
        """What blocks attend to, or, if none has attention, the states that are added position by position."""
        if memory is None:
            return None, None
        if any(block.cross is not None for block in self.blocks):
            return AttentionSource.from_memory(memory), None
        return None, memory.states.masked_fill(~memory.padding[..., None], 0.0)

    def _gather_next(
        self, states: Float[Tensor, "B S D"], lengths: Int[Tensor, " B"], n: int
    ) -> Float[Tensor, "B n D"]:
        """The states at the next n positions of each row; zeros beyond the end."""
        positions = lengths[:, None] + torch.arange(n, device=lengths.device)
        index = positions.clamp(max=states.shape[1] - 1)[..., None].expand(-1, -1, states.shape[2])
        return states.gather(1, index).masked_fill((positions >= states.shape[1])[..., None], 0.0)
