"""Attention inside chunks of a text, each of which also sees the one before it (the local layers of Reformer)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.cache import KeyValue
from saccade.layers.attention.lsh import ChunkedAttention, as_matrix, with_chunk_before
from saccade.layers.attention.multihead import Form
from saccade.layers.record import recording


def chunked_attention(
    query: Float[Tensor, "B H T E"],
    key: Float[Tensor, "B H T E"],
    value: Float[Tensor, "B H T E"],
    *,
    chunk: int,
    causal: bool = False,
    keep: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H T T"] | None]:
    """softmax(q . k / sqrt(E)) over its own chunk and the one before it; weights where somebody looks."""
    length = query.shape[2]
    filled = (F.pad(x, (0, 0, 0, -length % chunk)) for x in (query, key, value))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in filled)
    at = torch.arange(q.shape[2] * chunk, device=q.device).view(-1, chunk)
    seen = torch.cat((at - chunk, at), 1)
    allowed = (seen >= 0) & (seen < length)
    allowed = allowed[:, None] & (seen[:, None] <= at[..., None]) if causal else allowed[:, None]
    if keep is not None:
        real = F.pad(keep, (0, -length % chunk)).unflatten(1, (-1, chunk))[:, None]
        allowed = allowed & with_chunk_before(real)[..., None, :]
    allowed = allowed | (seen[:, None] == at[..., None])  # what is not real sees itself: its sum must be a number
    scores = (q @ with_chunk_before(k).transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
    weights = scores.softmax(-1)
    y = (F.dropout(weights, dropout) @ with_chunk_before(v)).flatten(2, 3)[:, :, :length]
    if not recording():
        return y, None
    queries, keys = (part.expand(*q.shape[:2], -1, -1) for part in (at, seen.clamp(min=0)))
    return y, as_matrix(weights, queries, keys, at.numel())[:, :, :length, :length]


class LocalAttention(ChunkedAttention):
    """Self-attention of which a position sees its own chunk and the one before it; without a chunk, the whole text."""

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        chunk: int | None,
        form: Form = "paper",
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, heads=heads, parts=3, form=form, causal=causal, dropout=dropout)
        self.chunk = chunk

    def count_keys(self, length: int) -> int:
        """Those of a chunk and of the one before it."""
        return length if self.chunk is None else min(length, 2 * self.chunk)

    def forward(
        self, x: Float[Tensor, "B T D"], *, mask: Bool[Tensor, "B T"] | None = None, kept: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
        """The sum for each position; nothing is chosen that would have to be kept."""
        query, key, value = (part.transpose(1, 2) for part in self.project(x))
        y, weights = chunked_attention(
            query, key, value, chunk=self.chunk or x.shape[1], causal=self.causal, keep=mask,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return self.joined(y, weights), ()

    def step(
        self, x: Float[Tensor, "B n D"], cache: KeyValue, *, at: Int[Tensor, "b n"], seen: int
    ) -> Float[Tensor, "B n D"]:
        """The next n positions of each row, which stand at `at`; `seen` are there after them."""
        query, key, value = self.project(x)
        cache.write(key, value, at.expand(x.shape[0], -1))
        if seen == x.shape[1]:
            return self(x)[0]
        query, key, value = (part.transpose(1, 2) for part in (query, cache.keys[:, :seen], cache.values[:, :seen]))
        there = masks.positions(seen, x.device)[:, None]
        allowed = there <= at[..., None]
        if self.chunk is not None:
            allowed = allowed & (there >= (at[..., None] // self.chunk - 1) * self.chunk)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~allowed[:, None], -math.inf).softmax(-1)
        return self.joined(weights @ value, weights)
