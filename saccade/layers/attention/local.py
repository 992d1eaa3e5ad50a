"""Local attention: each position attends to its own chunk and the chunk before it (the local layers of Reformer)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.cache import KeyValue
from saccade.layers.attention.lsh import ChunkedAttention, concat_previous_chunk, scatter_to_matrix
from saccade.layers.attention.multihead import Form
from saccade.layers.record import is_recording


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
    """Attend to the own chunk and the chunk before it; also the weights (B, H, T, T) while attention is recorded."""
    length = query.shape[2]
    padded = (F.pad(x, (0, 0, 0, -length % chunk)) for x in (query, key, value))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in padded)
    q_pos = torch.arange(q.shape[2] * chunk, device=q.device).view(-1, chunk)
    k_pos = torch.cat((q_pos - chunk, q_pos), 1)
    allowed = (k_pos >= 0) & (k_pos < length)
    allowed = allowed[:, None] & (k_pos[:, None] <= q_pos[..., None]) if causal else allowed[:, None]
    if keep is not None:
        real = F.pad(keep, (0, -length % chunk)).unflatten(1, (-1, chunk))[:, None]
        allowed = allowed & concat_previous_chunk(real)[..., None, :]
    allowed = allowed | (k_pos[:, None] == q_pos[..., None])  # padding attends to itself, which avoids NaN
    scores = (q @ concat_previous_chunk(k).transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
    weights = scores.softmax(-1)
    y = (F.dropout(weights, dropout) @ concat_previous_chunk(v)).flatten(2, 3)[:, :, :length]
    if not is_recording():
        return y, None
    queries, keys = (part.expand(*q.shape[:2], -1, -1) for part in (q_pos, k_pos.clamp(min=0)))
    return y, scatter_to_matrix(weights, queries, keys, q_pos.numel())[:, :, :length, :length]


class LocalAttention(ChunkedAttention):
    """Self-attention to the own chunk and the chunk before it; with `chunk` None, to the whole sequence."""

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
        """At most two chunks."""
        return length if self.chunk is None else min(length, 2 * self.chunk)

    def forward(
        self, x: Float[Tensor, "B T D"], *, mask: Bool[Tensor, "B T"] | None = None, choices: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
        """The output for each position, and no choices: unlike LSH attention, nothing here is random."""
        query, key, value = (part.transpose(1, 2) for part in self.project(x))
        y, weights = chunked_attention(
            query, key, value, chunk=self.chunk or x.shape[1], causal=self.causal, keep=mask,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return self.merge_heads(y, weights), ()

    def step(
        self, x: Float[Tensor, "B n D"], cache: KeyValue, *, positions: Int[Tensor, "b n"], length: int
    ) -> Float[Tensor, "B n D"]:
        """Decode the next n positions of each row, at `positions`; the cache then has `length` positions."""
        query, key, value = self.project(x)
        cache.write(key, value, positions.expand(x.shape[0], -1))
        if length == x.shape[1]:
            return self(x)[0]
        query, key, value = (part.transpose(1, 2) for part in (query, cache.keys[:, :length], cache.values[:, :length]))
        k_pos = masks.make_positions(length, x.device)[:, None]
        allowed = k_pos <= positions[..., None]
        if self.chunk is not None:
            allowed = allowed & (k_pos >= (positions[..., None] // self.chunk - 1) * self.chunk)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~allowed[:, None], -math.inf).softmax(-1)
        return self.merge_heads(weights @ value, weights)
