"""Positional encodings. Each kind acts in one place: at the input, on queries and keys, or as a term of the scores."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import SaccadeError

# ---- at the input


class Sinusoidal(nn.Module):
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(p / 10000^(2i/D)) (Vaswani et al. 2017, section 3.5).

    `layout`: sines and cosines interleaved as in the paper, or concatenated. `frequencies`: exponents 2i/D as in the
    paper, or i/(D/2 - 1) as in tensor2tensor and fairseq, which give other values, not only another order.
    """

    def __init__(
        self,
        dim: int,
        *,
        layout: Literal["interleaved", "concatenated"] = "interleaved",
        frequencies: Literal["paper", "tensor2tensor"] = "paper",
    ) -> None:
        super().__init__()
        if dim % 2:
            raise SaccadeError(f"sinusoidal positions need an even width, got {dim}; change stack.dim")
        self.pairs, self.interleaved = dim // 2, layout == "interleaved"
        self.max_length: int | None = None
        self.exponent_step = 1 / self.pairs if frequencies == "paper" else 1 / max(self.pairs - 1, 1)

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        # In float64 where the device has it: at large positions, float32 angles leave only four digits of a sine.
        dtype = torch.float32 if positions.device.type == "mps" else torch.float64
        frequencies = _compute_frequencies(self.pairs, positions.device, step=self.exponent_step, dtype=dtype)
        angles = _compute_angles(positions, frequencies)
        parts = (angles.sin().float(), angles.cos().float())
        return torch.stack(parts, -1).flatten(-2) if self.interleaved else torch.cat(parts, -1)

    def make_table(self, length: int, device: torch.device) -> Float[Tensor, "L D"]:
        """The encodings of the first `length` positions."""
        return self(torch.arange(length, device=device)[None])[0].contiguous()


class Learned(nn.Module):
    """Learned absolute positions: an embedding table with one vector per position (Gehring et al. 2017)."""

    def __init__(self, dim: int, *, max_length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, dim)
        self.max_length: int | None = max_length
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def make_table(self, length: int, device: torch.device) -> Float[Tensor, "L D"]:
        """The whole table, whatever `length` is."""
        return self.table.weight

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        # A packed row may be longer than its sequences. Values are checked on a CPU only, because other devices would
        # have to synchronize; batching has checked the lengths before.
        if positions.shape[1] > self.table.num_embeddings and positions.device.type == "cpu":
            length = int(positions.max()) + 1
            if length > self.table.num_embeddings:
                raise SaccadeError(
                    f"a sequence of {length} tokens has more positions than were learned, "
                    f"{self.table.num_embeddings}; split it, or train with a larger positions.length"
                )
        return self.table(positions)


# ---- on queries and keys


class RotaryScaling(NamedTuple):
    """Frequency scaling of rotary positions for longer contexts than in pretraining (Llama 3.1, `rope_scaling`).

    Frequencies with more than `high_freq_factor` rotations in `original_length` positions stay as they are, those with
    fewer than `low_freq_factor` are divided by `factor`, and those between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def scale_frequencies(self, frequencies: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        rotations = frequencies * (self.original_length / (2 * math.pi))
        smooth = ((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0.0, 1.0)
        return frequencies * (smooth + (1.0 - smooth) / self.factor)


class Rotary(nn.Module):
    """RoPE: rotates each pair of features by an angle proportional to the position (Su et al. 2021)."""

    def __init__(self, head_dim: int, *, base: float = 10000.0, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise SaccadeError(f"rotary positions need an even head width, got {head_dim}; change stack.dim or heads")
        if scaling is not None and scaling.low_freq_factor >= scaling.high_freq_factor:
            raise SaccadeError(
                "positions.scaling.low_freq_factor must be below high_freq_factor, got "
                f"{scaling.low_freq_factor:g} and {scaling.high_freq_factor:g}; change one of them"
            )
        self.pairs, self.base, self.scaling = head_dim // 2, base, scaling

    def get_frequencies(self, device: torch.device) -> Float[Tensor, " pairs"]:
        """The angle per position of each pair of features."""
        frequencies = _compute_frequencies(self.pairs, device, step=1 / self.pairs, base=self.base)
        return frequencies if self.scaling is None else self.scaling.scale_frequencies(frequencies)

    def forward(self, x: Float[Tensor, "B H T E"], positions: Int[Tensor, "b T"]) -> Float[Tensor, "B H T E"]:
        angles = _compute_angles(positions, self.get_frequencies(positions.device))[:, None]
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


# ---- as a score term: term(query, q_pos, k_pos) -> (B or 1, H, Q, K), added before the softmax; `query` is scaled


class ScoreTerm(nn.Module):
    """Base class of terms that are added to attention scores, such as relative positions."""

    uses_query = True  # whether it is a dot product with the query, as a part of that of query and key
    head_axes: ClassVar[Mapping[str, int | None]] = {}  # axis of heads of its tensors; None: all heads share it

    def shift_query(self, query: Float[Tensor, "B H Q E"], scale: float) -> Float[Tensor, "B H Q E"]:
        """Add the term's bias, if it has one, to the query before the product with keys; `scale` is applied later."""
        return query


class Shaw(ScoreTerm):
    """q . a(j - i), one learned vector per distance up to `max_distance` (Shaw et al. 2018, equation 4, keys only)."""

    head_axes: ClassVar[Mapping[str, int | None]] = {"table.weight": None}

    def __init__(self, head_dim: int, *, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Embedding(2 * max_distance + 1, head_dim)
        nn.init.normal_(self.table.weight, std=head_dim**-0.5)

    def forward(
        self, query: Float[Tensor, "B H Q E"], q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]
    ) -> Float[Tensor, "B H Q K"]:
        distances = _compute_distances(q_pos, k_pos).clamp(-self.max_distance, self.max_distance) + self.max_distance
        by_distance = query @ self.table.weight.T.to(query.dtype)
        index = distances[:, None].expand(*query.shape[:-1], -1)
        return by_distance.gather(-1, index)


class TransformerXL(ScoreTerm):
    """(q + v) . W r(j - i), r the sinusoidal encoding of a distance (Dai et al. 2019, section 3.3, terms b and d).

    Their content bias u (term c) is the bias of the query projection, or the parameter `content`, which is added to the
    query before the product with keys. With `segments` there is one more term (q + w) . s, where s is one vector for
    keys of the query's own segment and another for all other keys (Yang et al. 2019, section 2.5).
    """

    head_axes: ClassVar[Mapping[str, int | None]] = {
        "project.weight": 0, "bias": 0, "content": 0, "segment_bias": 0, "segments": 0,
    }  # fmt: skip

    def __init__(self, dim: int, *, heads: int, head_dim: int, content: bool = False, segments: bool = False) -> None:
        super().__init__()
        self.sinusoid = Sinusoidal(dim)
        self.project = nn.Linear(dim, heads * head_dim, bias=False)
        nn.init.xavier_uniform_(self.project.weight)
        shape = (heads, 1, head_dim)
        self.bias = nn.Parameter(torch.zeros(shape))
        self.content = nn.Parameter(torch.zeros(shape)) if content else None
        self.segment_bias = nn.Parameter(torch.zeros(shape)) if segments else None
        self.segments = nn.Parameter(torch.randn(heads, 2, head_dim) * head_dim**-0.5) if segments else None

    def shift_query(self, query: Float[Tensor, "B H Q E"], scale: float) -> Float[Tensor, "B H Q E"]:
        return query if self.content is None else query + (self.content / scale).to(query.dtype)

    def forward(
        self,
        query: Float[Tensor, "B H Q E"],
        q_pos: Int[Tensor, "b Q"],
        k_pos: Int[Tensor, "c K"],
        other_segment: Bool[Tensor, "B Q K"] | None = None,
    ) -> Float[Tensor, "B H Q K"]:
        """`other_segment`: whether query and key belong to different segments; None means a single segment."""
        most = k_pos.shape[1] - 1  # keys are at 0, 1, 2 ..., and queries among them
        distances = torch.arange(-most, most + 1, device=query.device)[None]
        vectors = self.project(self.sinusoid(distances)[0].to(self.project.weight.dtype)).to(query.dtype)
        by_distance = (query + self.bias.to(query.dtype)) @ vectors.unflatten(-1, query.shape[1::2]).permute(1, 2, 0)
        index = _compute_distances(q_pos, k_pos).clamp(-most, most)[:, None] + most
        scores = by_distance.gather(-1, index.expand(*query.shape[:-1], -1))
        if other_segment is None or self.segments is None or self.segment_bias is None:
            return scores
        by_segment = (query + self.segment_bias.to(query.dtype)) @ self.segments.mT.to(query.dtype)
        own, other = by_segment[..., None].unbind(-2)
        return scores + torch.where(other_segment[:, None], other, own)


class Bucketed(ScoreTerm):
    """T5's relative bias: one scalar per head and bucket of distances, exact when near, logarithmic when far (Raffel et
    al. 2020)."""

    uses_query = False
    head_axes: ClassVar[Mapping[str, int | None]] = {"table.weight": 1}

    def __init__(self, heads: int, *, buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional
        self.num_exact = buckets // (4 if bidirectional else 2)  # distances with a bucket of their own, per direction
        if not 1 <= self.num_exact < max_distance:
            raise SaccadeError(
                f"bucketed positions need at least 4 buckets and a distance above {self.num_exact}, "
                f"got buckets = {buckets} and distance = {max_distance}"
            )
        self.table = nn.Embedding(buckets, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(
        self, query: Float[Tensor, "B H Q E"], q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]
    ) -> Float[Tensor, "b2 H Q K"]:
        return self.table(self.get_bucket(_compute_distances(q_pos, k_pos))).permute(0, 3, 1, 2)

    def get_bucket(self, distances: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of each distance: in every direction, half of the buckets are exact and half logarithmic."""
        half = self.buckets // 2 if self.bidirectional else self.buckets
        side = (distances > 0) * half if self.bidirectional else torch.zeros_like(distances)
        near = distances.abs() if self.bidirectional else (-distances).clamp(min=0)
        exact = self.num_exact
        far = torch.log(near.clamp(min=1) / exact) / math.log(self.max_distance / exact) * (half - exact)
        return side + torch.where(near < exact, near, (exact + far.long()).clamp(max=half - 1))


class Alibi(ScoreTerm):
    """ALiBi: a penalty proportional to the distance, with a fixed slope per head (Press et al. 2022)."""

    slopes: Tensor

    uses_query = False
    head_axes: ClassVar[Mapping[str, int | None]] = {"slopes": 0}

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(_compute_slopes(heads)), persistent=False)

    def forward(
        self, query: Float[Tensor, "B H Q E"], q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]
    ) -> Float[Tensor, "b2 H Q K"]:
        return -self.slopes[None, :, None, None] * _compute_distances(q_pos, k_pos).abs()[:, None]


def _compute_frequencies(
    count: int, device: torch.device, *, step: float, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " count"]:
    """1 / base^(i step)."""
    return torch.exp(torch.arange(count, device=device, dtype=dtype) * step * -math.log(base))


def _compute_angles(positions: Int[Tensor, "b T"], frequencies: Float[Tensor, " n"]) -> Float[Tensor, "b T n"]:
    """positions * frequencies in the precision of the frequencies: bfloat16 cannot represent all integers above 256."""
    return positions[..., None].to(frequencies.dtype) * frequencies


def _compute_distances(q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]) -> Int[Tensor, "b2 Q K"]:
    """Key position minus query position."""
    return k_pos[:, None, :] - q_pos[:, :, None]


def _compute_slopes(heads: int) -> list[float]:
    """A geometric sequence; for heads beyond a power of two n, every other slope of the sequence for 2 n heads."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < heads:
        slopes += _compute_slopes(2 * power)[0::2][: heads - power]
    return slopes


# ---- learned positions of very long sequences


class Axial(nn.Module):
    """Position p is [a_(p // n); b_(p % n)] for a shape m x n: m + n vectors instead of m n (Kitaev et al. 2020)."""

    def __init__(self, dim: int, *, shape: tuple[int, int], row_dim: int) -> None:
        super().__init__()
        if not 0 < row_dim < dim:
            raise SaccadeError(
                f"axial positions have features for rows and for columns, which together are {dim}; "
                f"positions.row_dim must be between 1 and {dim - 1}, got {row_dim}"
            )
        self.shape, self.max_length = shape, shape[0] * shape[1]
        self.rows = nn.Embedding(shape[0], row_dim)
        self.columns = nn.Embedding(shape[1], dim - row_dim)
        for table in (self.rows, self.columns):
            nn.init.normal_(table.weight, std=dim**-0.5)

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        # Values are checked on a CPU only: other devices would have to synchronize.
        if positions.device.type == "cpu" and positions.numel() and int(positions.max()) >= self.max_length:
            raise SaccadeError(
                f"a sequence of {int(positions.max()) + 1} tokens has more positions than were learned, "
                f"{self.max_length}; split it, or train with a larger positions.shape"
            )
        columns = self.shape[1]
        return torch.cat((self.rows(positions // columns), self.columns(positions % columns)), -1)
