"""Attention by locality-sensitive hashing (LSH) (Reformer, Kitaev et al. 2020, section 2).

Queries and keys are the same vectors. Vectors that point in a similar direction are likely to share a bucket. Positions
are sorted by bucket and cut into chunks, and each attends to its own chunk and the one before it: memory is linear in
the length instead of quadratic. Several rounds with different random rotations make it less likely that similar vectors
miss each other.
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
from saccade.layers.attention.multihead import Attention, Form, HeadProjection, get_head_dim
from saccade.layers.record import is_recording
from saccade.layers.record import record_weights as keep_weights

SELF_SCORE = -1e5  # score of a position with itself: matters only where no other key may be attended
PADDING_BUCKET = 2**31 - 1  # sorts behind all real positions
EPSILON = 1e-6


@dataclass(frozen=True)
class Hashing:
    """Parameters of the hash: number of rounds, chunk length, and factors of the number of buckets.

    The number of buckets is the product of the even numbers `buckets`, so that a rotation needs only half their sum as
    columns; by default it follows from the length. With a `seed` the rotations are the same at every call.
    `other_chunk` is the chunk length of other layers of the stack: sequences are padded to a multiple of both.
    """

    rounds: int
    chunk: int
    buckets: tuple[int, ...] = ()
    seed: int | None = None
    other_chunk: int | None = None

    def __post_init__(self) -> None:
        if any(factor < 2 or factor % 2 for factor in self.buckets):
            given = " x ".join(map(str, self.buckets))
            raise SaccadeError(
                f"a hash by rotation needs even numbers of buckets, got {given}; make each a multiple of 2"
            )

    def get_padded_length(self, length: int) -> int:
        """The length to which a sequence is padded, unless it fits into one chunk of every layer."""
        other = self.other_chunk or self.chunk
        if length <= min(self.chunk, other):
            return length
        multiple = math.lcm(self.chunk, other)
        return -(-length // multiple) * multiple

    def get_bucket_factors(self, length: int) -> tuple[int, ...]:
        """Factors of the number of buckets: by default twice the number of chunks, rounded down to a power of two."""
        if self.buckets:
            return self.buckets
        power = max(1, (2 * (length // self.chunk)).bit_length() - 1)
        if 2**power <= 2 * self.chunk:
            return (2**power,)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    def sample_rotations(self, factors: Sequence[int], like: Float[Tensor, "B H T E"]) -> Float[Tensor, "H E R C"]:
        """Random rotations of each head; with a `seed` the same on all devices, whose generators differ."""
        shape = (like.shape[1], like.shape[3], self.rounds, sum(factors) // 2)
        if self.seed is None:
            return torch.randn(shape, dtype=like.dtype, device=like.device)
        generator = torch.Generator("cpu").manual_seed(self.seed)
        return torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)

    def __call__(
        self, qk: Float[Tensor, "B H T E"], known: Int[Tensor, "B H R T"] | None = None
    ) -> Int[Tensor, "B H R T"]:
        """The bucket of every position in every round; `known` buckets are returned unchanged."""
        factors = self.get_bucket_factors(self.get_padded_length(qk.shape[2]))
        rotations = self.sample_rotations(factors, qk)  # always, so that the random state advances alike
        return hash_vectors(qk, rotations, factors) if known is None else known


@torch.no_grad()
def hash_vectors(
    qk: Float[Tensor, "B H T E"], rotations: Float[Tensor, "H E R C"], factors: Sequence[int]
) -> Int[Tensor, "B H R T"]:
    """h(x) = argmax([xR; -xR]) (Kitaev et al. 2020, section 2), for each factor of the number of buckets."""
    return torch.stack([_compute_bucket(qk @ rotation, factors) for rotation in rotations.unbind(2)], 2)


def _compute_bucket(rotated: Float[Tensor, "B H T C"], factors: Sequence[int]) -> Int[Tensor, "B H T"]:
    bucket, below = torch.zeros(rotated.shape[:-1], dtype=torch.int32, device=rotated.device), 1
    for part, factor in zip(rotated.split([factor // 2 for factor in factors], -1), factors, strict=True):
        bucket += below * torch.cat((part, -part), -1).argmax(-1).int()
        below *= factor
    return bucket


def shared_qk_attention(
    qk: Float[Tensor, "B H T E"],
    value: Float[Tensor, "B H T E"],
    *,
    causal: bool = False,
    keep: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H T T"]]:
    """Exact attention whose keys are the normalized queries, over all positions; also the weights."""
    positions = masks.make_positions(qk.shape[2], qk.device)[None].expand(*qk.shape[:2], -1)
    real = None if keep is None else keep[:, None].expand(positions.shape)
    scores = _compute_scores(qk, normalize_keys(qk), positions, positions, causal=causal, real=real)
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout).to(value.dtype) @ value, weights


def lsh_attention(
    qk: Float[Tensor, "B H T E"],
    value: Float[Tensor, "B H T E"],
    buckets: Int[Tensor, "B H R T"],
    *,
    chunk: int,
    padded_length: int | None = None,
    causal: bool = False,
    keep: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H T T"] | None]:
    """Attention inside chunks of positions sorted by bucket; also the weights while attention is recorded.

    Sequences are padded to `padded_length`, by default the next multiple of `chunk`.

    The rounds are concatenated, so the first chunk of a round also sees the last chunk of the round before. Outputs of
    rounds are weighted by their normalizers: o = sum_r exp(z_r - z) o_r, z = log sum exp z_r (Kitaev et al. 2020,
    equation 4).
    """
    length, rounds = qk.shape[2], buckets.shape[2]
    extra = -length % chunk if padded_length is None else padded_length - length
    qk, value, buckets, keep = _pad_length(qk, value, buckets, keep, extra=extra)
    order = buckets.argsort(dim=-1, stable=True)  # (B, H, R, N): positions sorted by bucket
    q_pos = order.flatten(2).unflatten(2, (-1, chunk))
    query, value = (_gather_rows(x, order.flatten(2)).unflatten(2, (-1, chunk)) for x in (qk, value))
    k_pos = concat_previous_chunk(q_pos)
    real = None if keep is None else keep[:, None].expand(qk.shape[:3]).gather(2, k_pos.flatten(2)).view_as(k_pos)
    key = concat_previous_chunk(normalize_keys(query))
    scores = _compute_scores(query, key, q_pos, k_pos, causal=causal, real=real)
    # Computed separately: exp(scores - normalizer) would lose digits next to SELF_SCORE.
    normalizer, weights = scores.logsumexp(-1), scores.softmax(-1)
    y = F.dropout(weights, dropout).to(value.dtype) @ concat_previous_chunk(value)

    inverse = order.argsort(-1)
    y = _gather_rows(y.flatten(2, 3).unflatten(2, (rounds, -1)), inverse)
    share = normalizer.flatten(2).unflatten(2, (rounds, -1)).gather(3, inverse).softmax(2)
    y = (share[..., None].to(y.dtype) * y).sum(2)[:, :, :length]
    if not is_recording():
        return y, None
    weights = weights * share.gather(3, order).view(q_pos.shape)[..., None]
    return y, scatter_to_matrix(weights, q_pos, k_pos, order.shape[-1])[:, :, :length, :length]


def normalize_keys(x: Float[Tensor, "*any E"]) -> Float[Tensor, "*any E"]:
    """Keys of unit length: k_j = q_j / |q_j| (Kitaev et al. 2020, section 2, "Shared-QK Transformer")."""
    return x * (torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) / math.sqrt(x.shape[-1]))


def _pad_length(
    qk: Tensor, value: Tensor, buckets: Tensor, keep: Tensor | None, *, extra: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Append `extra` positions of padding, which gets a bucket of its own."""
    if extra:
        if keep is None:
            keep = torch.ones_like(buckets[:, 0, 0], dtype=torch.bool)
        qk, value = (F.pad(x, (0, 0, 0, extra)) for x in (qk, value))
        buckets, keep = F.pad(buckets, (0, extra)), F.pad(keep, (0, extra))
    if keep is not None:
        buckets = buckets.masked_fill(~keep[:, None, None], PADDING_BUCKET)
    return qk, value, buckets, keep


def _gather_rows(x: Float[Tensor, "*b N E"], index: Int[Tensor, "*b M"]) -> Float[Tensor, "*b M E"]:
    return x.gather(-2, index[..., None].expand(*index.shape, x.shape[-1]))


def concat_previous_chunk(x: Tensor) -> Tensor:
    """(B, H, chunks, C, ...) -> (B, H, chunks, 2 C, ...): each chunk after its predecessor (cyclic)."""
    return torch.cat((x.roll(1, 2), x), 3)


def _compute_scores(
    query: Float[Tensor, "*b Q E"],
    key: Float[Tensor, "*b K E"],
    q_pos: Int[Tensor, "*b Q"],
    k_pos: Int[Tensor, "*b K"],
    *,
    causal: bool,
    real: Bool[Tensor, "*b K"] | None,
) -> Float[Tensor, "*b Q K"]:
    """q . k, with -inf for masked keys and `SELF_SCORE` for the position itself."""
    scores = query @ key.transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # half precision cannot represent SELF_SCORE
    masked = None if real is None else ~real[..., None, :]
    if causal:
        later = k_pos[..., None, :] > q_pos[..., :, None]
        masked = later if masked is None else masked | later
    if masked is not None:
        scores = scores.masked_fill(masked, -math.inf)
    return scores.masked_fill(k_pos[..., None, :] == q_pos[..., :, None], SELF_SCORE)


def scatter_to_matrix(
    weights: Float[Tensor, "B H N C K"], q_pos: Int[Tensor, "B H N C"], k_pos: Int[Tensor, "B H N K"], length: int
) -> Float[Tensor, "B H T T"]:
    """The weights of all chunks and rounds, added into a matrix by the positions of query and key."""
    cells = q_pos[..., :, None] * length + k_pos[..., None, :]
    matrix = weights.new_zeros(*q_pos.shape[:2], length * length)
    return matrix.scatter_add(2, cells.flatten(2), weights.flatten(2)).unflatten(2, (length, length))


class ChunkedAttention(Attention):
    """Base of chunked attention: one projection to `parts` vectors per head, and the output projection."""

    def __init__(self, dim: int, *, heads: int, parts: int, form: Form, causal: bool, dropout: float) -> None:
        super().__init__()
        head_dim = get_head_dim(dim, heads=heads, form=form)
        self.project = HeadProjection(dim, heads=heads, head_dim=head_dim, parts=parts, form=form, bias=False)
        self.out = nn.Linear(heads * head_dim, dim, bias=False)
        nn.init.xavier_uniform_(self.out.weight)
        self.causal, self.dropout = causal, dropout

    @property
    def width(self) -> int:
        return self.out.in_features

    def merge_heads(
        self, y: Float[Tensor, "B H T E"], weights: Float[Tensor, "B H T K"] | None
    ) -> Float[Tensor, "B T D"]:
        """Concatenate the heads and apply the output projection; record the weights, if that is requested."""
        if is_recording() and weights is not None:
            keep_weights(self, weights)
        return self.out(y.transpose(1, 2).flatten(2))


class LshAttention(ChunkedAttention):
    """Self-attention with shared queries and keys: exact within one chunk length, by hashing for longer sequences."""

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
        """Two chunks in each round."""
        chunk = self.hashing.chunk
        return length if length <= chunk else 2 * chunk * self.hashing.rounds

    def forward(
        self, x: Float[Tensor, "B T D"], *, mask: Bool[Tensor, "B T"] | None = None, choices: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, ...]]:
        """The output for each position, and the buckets; passed in as `choices`, they are not computed again.

        Outside of training the rotations are the same at every call, so that outputs are deterministic.
        """
        shared, value = (part.transpose(1, 2) for part in self.project(x))
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None
        padded_length = self.hashing.get_padded_length(x.shape[1])
        if padded_length <= self.hashing.chunk:
            y, weights = shared_qk_attention(shared, value, causal=self.causal, keep=mask, dropout=dropout)
        else:
            hashing = self.hashing if self.training or self.hashing.seed is not None else replace(self.hashing, seed=0)
            choices = (hashing(shared, *choices),)
            y, weights = lsh_attention(
                shared, value, *choices, chunk=hashing.chunk, padded_length=padded_length, causal=self.causal,
                keep=mask, dropout=dropout,
            )  # fmt: skip
        return self.merge_heads(y, weights), choices

    def step(
        self, x: Float[Tensor, "B n D"], cache: KeyValue, *, positions: Int[Tensor, "b n"], length: int
    ) -> Float[Tensor, "B n D"]:
        """Decode the next n positions of each row, at `positions`; the cache then has `length` positions.

        A prompt is processed like a whole sequence. Later positions attend exactly to all positions before them, which
        hashing approximates.
        """
        shared, value = self.project(x)
        cache.write(shared, value, positions.expand(x.shape[0], -1))
        if length == x.shape[1]:
            return self(x)[0]
        query, key, values = (
            part.transpose(1, 2) for part in (shared, cache.keys[:, :length], cache.values[:, :length])
        )
        q_pos = positions[:, None].expand(*query.shape[:-1])
        k_pos = torch.arange(length, device=x.device).expand(*query.shape[:2], -1)
        weights = _compute_scores(query, normalize_keys(key), q_pos, k_pos, causal=True, real=None).softmax(-1)
        return self.merge_heads(weights.to(values.dtype) @ values, weights)
