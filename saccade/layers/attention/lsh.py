"""Attention among positions whose vectors hash alike (Reformer, Kitaev et al. 2020, section 2).

Queries and keys are the same vectors. Those that point in a similar direction fall into one bucket; sorted by bucket
and cut into chunks, a position sees its own chunk and the one before it, so that memory grows with the length and not
with its square. What one round of hashing tears apart another may bring together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.layers.attention import masks
from saccade.layers.attention.cache import KeyValue
from saccade.layers.attention.multihead import Attention, Form, HeadProjection, width_of_head
from saccade.layers.record import keep as keep_weights
from saccade.layers.record import recording

SELF = -1e5  # the score of a position with itself: below all others, and counted where there is no other
LAST = 2**31 - 1  # the bucket of positions that are not real
EPSILON = 1e-6


@dataclass(frozen=True)
class Hashing:
    """How often positions are hashed, how many see each other, and into how many buckets they fall.

    The buckets are a product of even numbers, so that rotations need only as many columns as half their sum; where
    none are given they follow from the length. With a `seed` the rotations are the same at every call.
    """

    rounds: int
    chunk: int
    buckets: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if any(factor < 2 or factor % 2 for factor in self.buckets):
            given = " x ".join(map(str, self.buckets))
            raise SaccadeError(
                f"a hash by rotation needs even numbers of buckets, got {given}; make each a multiple of 2"
            )

    def factors(self, length: int) -> tuple[int, ...]:
        """Twice as many buckets as chunks, rounded down to a power of two; a product of two where that is many."""
        if self.buckets:
            return self.buckets
        power = max(1, (2 * (length // self.chunk)).bit_length() - 1)
        if 2**power <= 2 * self.chunk:
            return (2**power,)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    def rotations(self, factors: Sequence[int], like: Float[Tensor, "B H T E"]) -> Float[Tensor, "H E R C"]:
        shape = (like.shape[1], like.shape[3], self.rounds, sum(factors) // 2)
        generator = None if self.seed is None else torch.Generator(like.device).manual_seed(self.seed)
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

    def __call__(
        self, shared: Float[Tensor, "B H T E"], known: Int[Tensor, "B H R T"] | None = None
    ) -> Int[Tensor, "B H R T"]:
        """The bucket of every position in every round."""
        factors = self.factors(shared.shape[2])
        rotations = self.rotations(factors, shared)  # drawn in any case: then what is drawn next is the same, too
        return hashed(shared, rotations, factors) if known is None else known


@torch.no_grad()
def hashed(
    shared: Float[Tensor, "B H T E"], rotations: Float[Tensor, "H E R C"], factors: Sequence[int]
) -> Int[Tensor, "B H R T"]:
    """h(x) = argmax([xR; -xR]) (Kitaev et al. 2020, section 2), for each factor of the number of buckets."""
    return torch.stack([_bucket(shared @ rotation, factors) for rotation in rotations.unbind(2)], 2)


def _bucket(turned: Float[Tensor, "B H T C"], factors: Sequence[int]) -> Int[Tensor, "B H T"]:
    bucket, below = torch.zeros(turned.shape[:-1], dtype=torch.int32, device=turned.device), 1
    for part, factor in zip(turned.split([factor // 2 for factor in factors], -1), factors, strict=True):
        bucket += below * torch.cat((part, -part), -1).argmax(-1).int()
        below *= factor
    return bucket


def shared_attention(
    shared: Float[Tensor, "B H T E"],
    value: Float[Tensor, "B H T E"],
    *,
    causal: bool = False,
    keep: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H T T"]]:
    """Exact attention where the keys are the queries, made one long; and its weights."""
    at = masks.positions(shared.shape[2], shared.device)[None].expand(*shared.shape[:2], -1)
    real = None if keep is None else keep[:, None].expand(at.shape)
    scores = _scores(shared, unit(shared), at, at, causal=causal, real=real)
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout).to(value.dtype) @ value, weights


def lsh_attention(
    shared: Float[Tensor, "B H T E"],
    value: Float[Tensor, "B H T E"],
    buckets: Int[Tensor, "B H R T"],
    *,
    chunk: int,
    causal: bool = False,
    keep: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H T T"] | None]:
    """Attention inside chunks of positions sorted by bucket, all rounds put together; weights where somebody looks.

    The rounds stand one after the other, so that the first chunk of a round sees the last of the round before. A round
    counts as much as it found: o = sum_r exp(z_r - z) o_r, where z = log sum exp z_r (Kitaev et al. 2020, equation 4).
    """
    length, rounds = shared.shape[2], buckets.shape[2]
    shared, value, buckets, keep = _filled(shared, value, buckets, keep, multiple=chunk)
    places = buckets.argsort(dim=-1, stable=True)  # (B, H, R, N): the positions, bucket by bucket
    at = places.flatten(2).unflatten(2, (-1, chunk))
    query, value = (_gathered(x, places.flatten(2)).unflatten(2, (-1, chunk)) for x in (shared, value))
    seen = with_chunk_before(at)
    real = None if keep is None else keep[:, None].expand(shared.shape[:3]).gather(2, seen.flatten(2)).view_as(seen)
    scores = _scores(query, with_chunk_before(unit(query)), at, seen, causal=causal, real=real)
    found, weights = scores.logsumexp(-1), scores.softmax(-1)  # not from each other: SELF leaves few digits of a sum
    y = F.dropout(weights, dropout).to(value.dtype) @ with_chunk_before(value)

    back = places.argsort(-1)
    y = _gathered(y.flatten(2, 3).unflatten(2, (rounds, -1)), back)
    share = found.flatten(2).unflatten(2, (rounds, -1)).gather(3, back).softmax(2)
    y = (share[..., None].to(y.dtype) * y).sum(2)[:, :, :length]
    if not recording():
        return y, None
    weights = weights * share.gather(3, places).view(at.shape)[..., None]
    return y, as_matrix(weights, at, seen, places.shape[-1])[:, :, :length, :length]


def unit(x: Float[Tensor, "*any E"]) -> Float[Tensor, "*any E"]:
    """Vectors of length one: k_j = q_j / |q_j| (Kitaev et al. 2020, section 2, "Shared-QK Transformer")."""
    return x * (torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) / math.sqrt(x.shape[-1]))


def _filled(
    shared: Tensor, value: Tensor, buckets: Tensor, keep: Tensor | None, *, multiple: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """All as long as whole chunks are; what is not real goes to a bucket of its own."""
    extra = -shared.shape[2] % multiple
    if extra:
        if keep is None:
            keep = torch.ones_like(buckets[:, 0, 0], dtype=torch.bool)
        shared, value = (F.pad(x, (0, 0, 0, extra)) for x in (shared, value))
        buckets, keep = F.pad(buckets, (0, extra)), F.pad(keep, (0, extra))
    if keep is not None:
        buckets = buckets.masked_fill(~keep[:, None, None], LAST)
    return shared, value, buckets, keep


def _gathered(x: Float[Tensor, "*b N E"], index: Int[Tensor, "*b M"]) -> Float[Tensor, "*b M E"]:
    return x.gather(-2, index[..., None].expand(*index.shape, x.shape[-1]))


def with_chunk_before(x: Tensor) -> Tensor:
    """(B, H, chunks, C, ...) -> (B, H, chunks, 2 C, ...); before the first chunk stands the last one."""
    return torch.cat((x.roll(1, 2), x), 3)


def _scores(
    query: Float[Tensor, "*b Q E"],
    key: Float[Tensor, "*b K E"],
    q_pos: Int[Tensor, "*b Q"],
    k_pos: Int[Tensor, "*b K"],
    *,
    causal: bool,
    real: Bool[Tensor, "*b K"] | None,
) -> Float[Tensor, "*b Q K"]:
    """q . k, without what may not be seen; a position sees itself only where it sees nothing else."""
    scores = query @ key.transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # half precision ends before SELF
    hidden = None if real is None else ~real[..., None, :]
    if causal:
        later = k_pos[..., None, :] > q_pos[..., :, None]
        hidden = later if hidden is None else hidden | later
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.masked_fill(k_pos[..., None, :] == q_pos[..., :, None], SELF)


def as_matrix(
    weights: Float[Tensor, "B H N C K"], at: Int[Tensor, "B H N C"], seen: Int[Tensor, "B H N K"], length: int
) -> Float[Tensor, "B H T T"]:
    """The weights of all chunks and rounds, each added where its query and its key stand in the text."""
    cells = at[..., :, None] * length + seen[..., None, :]
    matrix = weights.new_zeros(*at.shape[:2], length * length)
    return matrix.scatter_add(2, cells.flatten(2), weights.flatten(2)).unflatten(2, (length, length))


class ChunkedAttention(Attention):
    """What attention in chunks shares: one product to `parts` vectors for each head, one that joins the heads."""

    def __init__(self, dim: int, *, heads: int, parts: int, form: Form, causal: bool, dropout: float) -> None:
        super().__init__()
        head_dim = width_of_head(dim, heads=heads, form=form)
        self.project = HeadProjection(dim, heads=heads, head_dim=head_dim, parts=parts, form=form, bias=False)
        self.out = nn.Linear(heads * head_dim, dim, bias=False)
        nn.init.xavier_uniform_(self.out.weight)
        self.causal, self.dropout = causal, dropout

    @property
    def width(self) -> int:
        return self.out.in_features

    def joined(self, y: Float[Tensor, "B H T E"], weights: Float[Tensor, "B H T K"] | None) -> Float[Tensor, "B T D"]:
        """All heads of a position as one vector; the weights are left with whoever is looking."""
        if recording() and weights is not None:
            keep_weights(self, weights)
        return self.out(y.transpose(1, 2).flatten(2))


class LshAttention(ChunkedAttention):
    """Self-attention whose queries are its keys, exact in a text of one chunk, by hashing in a longer one."""

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        hashing: Hashing,
        form: Form = "paper",
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, heads=heads, parts=2, form=form, causal=causal, dropout=dropout)
        self.hashing = hashing

    def count_keys(self, length: int) -> int:
        """Those of two chunks in each round."""
        chunk = self.hashing.chunk
        return length if length <= chunk else 2 * chunk * self.hashing.rounds

    def forward(
        self, x: Float[Tensor, "B T D"], *, mask: Bool[Tensor, "B T"] | None = None, kept: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
        """The sum for each position, and the buckets; given back as `kept`, these are not hashed anew.

        Rotations are the same at every call but in training: one text gives one output.
        """
        shared, value = (part.transpose(1, 2) for part in self.project(x))
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None
        if x.shape[1] <= self.hashing.chunk:
            y, weights = shared_attention(shared, value, causal=self.causal, keep=mask, dropout=dropout)
        else:
            hashing = self.hashing if self.training or self.hashing.seed is not None else replace(self.hashing, seed=0)
            kept = (hashing(shared, *kept),)
            y, weights = lsh_attention(
                shared, value, *kept, chunk=hashing.chunk, causal=self.causal, keep=mask, dropout=dropout
            )
        return self.joined(y, weights), kept

    def step(
        self, x: Float[Tensor, "B n D"], cache: KeyValue, *, at: Int[Tensor, "b n"], seen: int
    ) -> Float[Tensor, "B n D"]:
        """The next n positions of each row, which stand at `at`; `seen` are there after them.

        The beginning is read as whole texts are; then positions look at all before them, which hashing stands for.
        """
        shared, value = self.project(x)
        cache.write(shared, value, at.expand(x.shape[0], -1))
        if seen == x.shape[1]:
            return self(x)[0]
        query, key, values = (part.transpose(1, 2) for part in (shared, cache.keys[:, :seen], cache.values[:, :seen]))
        q_pos = at[:, None].expand(*query.shape[:-1])
        k_pos = torch.arange(seen, device=x.device).expand(*query.shape[:2], -1)
        weights = _scores(query, unit(key), q_pos, k_pos, causal=True, real=None).softmax(-1)
        return self.joined(weights.to(values.dtype) @ values, weights)
