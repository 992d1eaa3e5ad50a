"""Readers: X -> Memory."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.data.tokenizer import START
from saccade.layers import masks
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing


class Embedding(nn.Module):
    """Tokens and their positions as vectors; tokens times sqrt(D) (Vaswani et al. 2017, section 3.4) where scaled.

    Positions are added, or concatenated, or left out where they act inside attention; `norm` comes after them. The
    vector of START is that of another id where `start` says so.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        *,
        positions: nn.Module | None = None,
        concat: bool = False,
        scale: bool = True,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        start: int | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.concat = tokens, positions, concat
        self.scale = math.sqrt(tokens.embedding_dim) if scale else 1.0
        self.norm, self.start = norm, start
        self.dropout = Dropout(dropout)

    def forward(self, ids: Int[Tensor, "B T"], at: Int[Tensor, "b T"] | None = None) -> Float[Tensor, "B T D"]:
        x = self.tokens(self.rows(ids)) * self.scale
        if self.positions is not None:
            where = self.positions(masks.positions(ids.shape[1], ids.device) if at is None else at).to(x.dtype)
            x = torch.cat((x, where.expand(x.shape[0], -1, -1)), -1) if self.concat else x + where
        return self.dropout(x if self.norm is None else self.norm(x))

    def rows(self, ids: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """The rows of the table in which the ids are looked up."""
        return ids if self.start is None else ids.masked_fill(ids == START, self.start)


class TokenReader(nn.Module):
    """Text: embedding, then a stack that may look in both directions."""

    def __init__(self, embedding: Embedding, stack: Any) -> None:
        super().__init__()
        self.embedding, self.stack, self.dim = embedding, stack, stack.dim

    def forward(self, ids: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"] | Packing) -> Memory:
        states, mask, final, aux = self.stack(self.embedding(ids, places(mask)), mask)
        return Memory(states, mask, tokens=ids, values=aux.get("values"), final=final)


def places(mask: Bool[Tensor, "B S"] | Packing | None) -> Int[Tensor, "1 N"] | None:
    """The position of each token in its text, where texts are packed; otherwise they follow from the shape."""
    return mask.positions if isinstance(mask, Packing) else None
