"""The reader of token sequences: ids -> Memory."""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack, TensorPlan, get_capabilities
from saccade.data.tokenization.tokenizer import END, START
from saccade.kernels.cpu.prepared import CpuLayout, describe_embedding
from saccade.kernels.weights import EmbeddingWeights, PositionTable, Unsupported
from saccade.layers.attention import masks
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, get_batch_layout


class Embedding(nn.Module):
    """Token, position and segment embeddings, then norm, dropout and projection.

    Token vectors are multiplied by sqrt(D) if `scale` (Vaswani et al. 2017, section 3.4). Positions are added, or
    concatenated if `concat`, or absent where they act inside attention. Segment vectors number the parts of a sequence
    that END separates (Devlin et al. 2019). The projection leads to the width of the stack (Lan et al. 2020). With
    `start`, the token START uses the vector of that id.
    """

    cpu_layout = CpuLayout(embeddings=("tokens",))
    tensor_plan = TensorPlan(embeddings=("tokens",))

    def __init__(
        self,
        tokens: nn.Embedding,
        *,
        positions: nn.Module | None = None,
        concat: bool = False,
        scale: bool = True,
        norm: nn.Module | None = None,
        segments_and_projection: tuple[nn.Embedding | None, nn.Module | None] = (None, None),
        dropout: float = 0.0,
        start: int | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.concat = tokens, positions, concat
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm, self.start = norm, start
        self.segments, self.project = segments_and_projection
        self.dropout = Dropout(dropout)

    def forward(self, ids: Int[Tensor, "B T"], positions: Int[Tensor, "b T"] | None = None) -> Float[Tensor, "B T D"]:
        x = self.tokens(self.get_row_ids(ids)) * self.scale
        if self.positions is not None:
            at = masks.make_positions(ids.shape[1], ids.device) if positions is None else positions
            encoding = self.positions(at).to(x.dtype)
            x = torch.cat((x, encoding.expand(x.shape[0], -1, -1)), -1) if self.concat else x + encoding
        if self.segments is not None:
            x = x + self.segments(get_segment_ids(ids, positions).clamp(max=self.segments.num_embeddings - 1))
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.project is None else self.project(x)

    @property
    def max_length(self) -> int | None:
        """Number of positions that were learned; None where there is no limit."""
        limit: int | None = getattr(self.positions, "max_length", None)
        return limit

    def describe(self) -> EmbeddingWeights:
        """Return the weights for the kernels of a decoding step; raises `Unsupported` for forms they do not cover."""
        if self.concat or self.norm is not None or self.segments is not None or self.project is not None:
            raise Unsupported("its embedding is more than a sum of token and position")
        if not isinstance(self.positions, PositionTable | None):
            raise Unsupported(f"its positions ({type(self.positions).__name__}) are not a table")
        return EmbeddingWeights(*describe_embedding(self.tokens), self.scale, self.positions, self.get_row_ids)

    def get_row_ids(self, ids: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the rows of the token table for these ids: ids, except that START may share the row of another."""
        return ids if self.start is None else ids.masked_fill(ids == START, self.start)


class TokenReader(nn.Module):
    """An encoder of token sequences: embedding, then a stack."""

    def __init__(
        self,
        embedding: Embedding,
        stack: Stack,
        *,
        uses_segments: bool = False,
        concat_embeddings: bool = False,
        embedding_width: int = 0,
        second_pass: Any = None,
    ) -> None:
        """`uses_segments`: attention scores depend on whether two tokens belong to the same segment.

        `concat_embeddings`: memory is each token's state concatenated with its embedding of width `embedding_width`
        (the multi-level aligner of Mei et al. 2016). `second_pass`: a SecondPass whose states replace those of the
        stack; it is stored as `again`, which names its tensors in checkpoints.
        """
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.uses_segments, self.concat_embeddings = uses_segments, concat_embeddings
        self.again = second_pass
        self.dim = stack.dim + (embedding_width if concat_embeddings else 0) if second_pass is None else second_pass.dim

    @property
    def max_length(self) -> int | None:
        """Maximum length of a sequence in tokens; None where there is no limit."""
        return self.embedding.max_length

    @property
    def capabilities(self) -> Capabilities:
        """Those of the stack, combined with those of the second pass if there is one."""
        first = get_capabilities(self.stack, "stack")
        if self.again is not None:
            first &= get_capabilities(self.again.stack, "second stack")
        plain = (
            self.again is None
            and not self.uses_segments
            and not self.concat_embeddings
            and type(self).forward is TokenReader.forward
        )
        return first if plain else replace(first, repeated_passes=False)

    def forward(self, ids: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"] | Packing) -> Memory:
        extra: dict[str, Any] = {}
        if self.uses_segments:
            extra["segments"] = get_segment_ids(ids, get_packed_positions(mask))
        x = self.embedding(ids, get_packed_positions(mask))
        states, mask, final, aux = self.stack(x, mask, **extra)
        if self.concat_embeddings:
            return Memory(torch.cat((states, x), -1), mask, tokens=ids, inputs=x, aux=aux)
        memory = Memory(states, mask, tokens=ids, values=aux.get("values"), final=final, inputs=x, aux=aux)
        return memory if self.again is None else self.again(memory)


def get_segment_ids(ids: Int[Tensor, "B T"], positions: Int[Tensor, "b T"] | None) -> Int[Tensor, "B T"]:
    """Return the segment of each token in its sequence, counted from 0: the number of END tokens before it.

    `positions` are those of tokens in their sequences, needed where sequences are packed into one row.
    """
    ends = (ids == END).long()
    before = ends.cumsum(1) - ends
    if positions is None:
        return before
    first = torch.arange(ids.shape[1], device=ids.device) - positions  # index in the row of its sequence's first token
    return before - before.gather(1, first.expand_as(ids))


def get_packed_positions(mask: Bool[Tensor, "B S"] | Packing | None) -> Int[Tensor, "1 N"] | None:
    """Return the position of each token in its sequence for packed sequences; None for a padded batch (0, 1, 2 ...)."""
    return None if mask is None else get_batch_layout(mask).token_positions
