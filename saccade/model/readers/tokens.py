"""Readers: X -> Memory."""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Stack, get_capabilities
from saccade.data.tokenization.tokenizer import END, START
from saccade.kernels.cpu.prepared import CpuLayout, describe_table
from saccade.kernels.weights import EmbeddingWeights, PositionTable, Unsupported
from saccade.layers.attention import masks
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, layout_of

More = tuple[nn.Embedding | None, nn.Module | None]


class Embedding(nn.Module):
    """Tokens and their positions as vectors; tokens times sqrt(D) (Vaswani et al. 2017, section 3.4) where scaled.

    Positions are added, or concatenated, or left out where they act inside attention. `segments` adds a vector to each
    part of a text that END ends (Devlin et al. 2019); `norm` comes after them, and at last `project`, which makes all
    of it wider (Lan et al. 2020): these two are `more`. The vector of START is that of another id where `start` says
    so.
    """

    cpu_layout = CpuLayout(tables=("tokens",))

    def __init__(
        self,
        tokens: nn.Embedding,
        *,
        positions: nn.Module | None = None,
        concat: bool = False,
        scale: bool = True,
        norm: nn.Module | None = None,
        more: More = (None, None),
        dropout: float = 0.0,
        start: int | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.concat = tokens, positions, concat
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm, self.start = norm, start
        self.segments, self.project = more
        self.dropout = Dropout(dropout)

    def forward(self, ids: Int[Tensor, "B T"], at: Int[Tensor, "b T"] | None = None) -> Float[Tensor, "B T D"]:
        x = self.tokens(self.rows(ids)) * self.scale
        if self.positions is not None:
            where = self.positions(masks.positions(ids.shape[1], ids.device) if at is None else at).to(x.dtype)
            x = torch.cat((x, where.expand(x.shape[0], -1, -1)), -1) if self.concat else x + where
        if self.segments is not None:
            x = x + self.segments(parts(ids, at).clamp(max=self.segments.num_embeddings - 1))
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.project is None else self.project(x)

    @property
    def max_length(self) -> int | None:
        """How many positions there are; None where there is no limit."""
        return self.positions.max_length if isinstance(self.positions, PositionTable) else None

    def describe(self) -> EmbeddingWeights:
        """Its weights for the kernels of a decoding step; raises `Unsupported` where they cannot express it."""
        if self.concat or self.norm is not None or self.segments is not None or self.project is not None:
            raise Unsupported("its embedding is more than a sum of token and position")
        if not isinstance(self.positions, PositionTable | None):
            raise Unsupported(f"its positions ({type(self.positions).__name__}) are no table")
        return EmbeddingWeights(*describe_table(self.tokens), self.scale, self.positions, self.rows)

    def rows(self, ids: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """The rows of the table in which the ids are looked up."""
        return ids if self.start is None else ids.masked_fill(ids == START, self.start)


class TokenReader(nn.Module):
    """Text: embedding, then a stack that may look in both directions."""

    def __init__(
        self,
        embedding: Embedding,
        stack: Stack,
        *,
        relates: bool = False,
        levels: bool = False,
        width: int = 0,
        again: Any = None,
    ) -> None:
        """`relates`: attention asks whether two tokens belong to one segment.

        `levels`: what is attended to is the state of each token beside its vector, which is `width` wide (the
        multi-level aligner of Mei et al. 2016). `again`: reads the text a second time, and its states are given.
        """
        super().__init__()
        self.embedding = embedding
        self.stack: Any = stack  # with further methods where its capabilities say so
        self.relates, self.levels = relates, levels
        self.again = again
        self.dim = stack.dim + (width if levels else 0) if again is None else again.dim

    @property
    def max_length(self) -> int | None:
        """How many positions it can read; None where there is no limit."""
        return self.embedding.max_length

    @property
    def capabilities(self) -> Capabilities:
        """Those of its stack and, where the sequence is read twice, of the second one."""
        first = get_capabilities(self.stack, "stack")
        if self.again is not None:
            first &= get_capabilities(self.again.stack, "second stack")
        plain = (
            self.again is None and not self.relates and not self.levels and type(self).forward is TokenReader.forward
        )
        return first if plain else replace(first, repeated_passes=False)

    def forward(self, ids: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"] | Packing) -> Memory:
        told = {"segments": parts(ids, places(mask))} if self.relates else {}
        x = self.embedding(ids, places(mask))
        states, mask, final, aux = self.stack(x, mask, **told)
        if self.levels:
            return Memory(torch.cat((states, x), -1), mask, tokens=ids, inputs=x, aux=aux)
        memory = Memory(states, mask, tokens=ids, values=aux.get("values"), final=final, inputs=x, aux=aux)
        return memory if self.again is None else self.again(memory)


def parts(ids: Int[Tensor, "B T"], at: Int[Tensor, "b T"] | None) -> Int[Tensor, "B T"]:
    """Which part of its text each token is in, counted from 0: how many END stand before it.

    `at` are positions in the texts of a packed row.
    """
    ends = (ids == END).long()
    before = ends.cumsum(1) - ends
    if at is None:
        return before
    first = torch.arange(ids.shape[1], device=ids.device) - at  # where in the row its text begins
    return before - before.gather(1, first.expand_as(ids))


def places(mask: Bool[Tensor, "B S"] | Packing | None) -> Int[Tensor, "1 N"] | None:
    """The position of each token in its text, where texts are packed; otherwise they follow from the shape."""
    return None if mask is None else layout_of(mask).places
