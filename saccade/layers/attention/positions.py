"""Where a token stands. Each kind acts at exactly one place: at the input, on queries and keys, or as a score term."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import SaccadeError

# ---- at the input


class Sinusoidal(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(the same) (Vaswani et al. 2017, section 3.5).

    `layout`: sines and cosines interleaved as in the paper, or concatenated. `frequencies`: exponent 2i/D as in the
    paper, or i/(D/2 - 1) as in tensor2tensor and fairseq, which are different numbers and not only another order.
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
        self.step = 1 / self.pairs if frequencies == "paper" else 1 / max(self.pairs - 1, 1)

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        # In float64 where there is such a type: far from the beginning, float32 has no more than four digits of a sine.
        kind = torch.float32 if positions.device.type == "mps" else torch.float64
        angles = _angles(positions, _frequencies(self.pairs, positions.device, step=self.step, kind=kind))
        parts = (angles.sin().float(), angles.cos().float())
        return torch.stack(parts, -1).flatten(-2) if self.interleaved else torch.cat(parts, -1)

    def make_table(self, length: int, device: torch.device) -> Float[Tensor, "L D"]:
        """The vectors of the first positions."""
        return self(torch.arange(length, device=device)[None])[0].contiguous()


class Learned(nn.Module):
    """A table with one vector for each position (Gehring et al. 2017)."""

    def __init__(self, dim: int, *, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, dim)
        self.max_length: int | None = length
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def make_table(self, length: int, device: torch.device) -> Float[Tensor, "L D"]:
        """All vectors that were learned, however many are asked for."""
        return self.table.weight

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        # A row may hold many texts. What stands in it is asked on a CPU only: any other device would have to wait, and
        # whoever makes batches has seen to their lengths.
        if positions.shape[1] > self.table.num_embeddings and positions.device.type == "cpu":
            length = int(positions.max()) + 1
            if length > self.table.num_embeddings:
                raise SaccadeError(
                    f"a text of {length} tokens has more positions than were learned, "
                    f"{self.table.num_embeddings}; split it, or train with a larger positions.length"
                )
        return self.table(positions)


# ---- on queries and keys


class Stretch(NamedTuple):
    """What lets a model read longer texts than it was pretrained with (Llama 3.1): slow turns become slower.

    Pairs that turn more than `high` times in `length` positions stay as they are, those that turn less than `low` times
    turn `factor` times slower, and in between it is a mixture of both.
    """

    factor: float
    low: float
    high: float
    length: int

    def slowed(self, frequencies: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        turns = frequencies * (self.length / (2 * math.pi))
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


class Rotary(nn.Module):
    """Turns each pair of features by an angle that grows with the position (Su et al. 2021)."""

    def __init__(self, head_dim: int, *, base: float = 10000.0, stretch: Stretch | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise SaccadeError(f"rotary positions need an even head width, got {head_dim}; change stack.dim or heads")
        if stretch is not None and stretch.low >= stretch.high:
            raise SaccadeError(
                f"positions.stretch.low must be below high, got low = {stretch.low:g} and high = {stretch.high:g}; "
                "change one of them"
            )
        self.pairs, self.base, self.stretch = head_dim // 2, base, stretch

    def frequencies(self, device: torch.device) -> Float[Tensor, " pairs"]:
        """The angle from one position to the next, of each pair."""
        found = _frequencies(self.pairs, device, step=1 / self.pairs, base=self.base)
        return found if self.stretch is None else self.stretch.slowed(found)

    def forward(self, x: Float[Tensor, "B H T E"], positions: Int[Tensor, "b T"]) -> Float[Tensor, "B H T E"]:
        angles = _angles(positions, self.frequencies(positions.device))[:, None]
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


# ---- as a score term: term(query, q_pos, k_pos) -> (B or 1, H, Q, K), added before the softmax; the query is scaled


class ScoreTerm(nn.Module):
    """Something added to the scores of attention."""

    def shift_query(self, query: Float[Tensor, "B H Q E"], scale: float) -> Float[Tensor, "B H Q E"]:
        """What meets the keys: the query, unless the term adds a bias to it; scores are multiplied by `scale` later."""
        return query


class Shaw(ScoreTerm):
    """q . a(j - i), with one vector for each distance up to `distance` (Shaw et al. 2018, equation 4, keys only)."""

    def __init__(self, head_dim: int, *, distance: int) -> None:
        super().__init__()
        self.distance = distance
        self.table = nn.Embedding(2 * distance + 1, head_dim)
        nn.init.normal_(self.table.weight, std=head_dim**-0.5)

    def forward(
        self, query: Float[Tensor, "B H Q E"], q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]
    ) -> Float[Tensor, "B H Q K"]:
        away = _distances(q_pos, k_pos).clamp(-self.distance, self.distance) + self.distance
        by_distance = query @ self.table.weight.T.to(query.dtype)
        index = away[:, None].expand(*query.shape[:-1], -1)
        return by_distance.gather(-1, index)


class TransformerXL(ScoreTerm):
    """(q + v) . W r(j - i), where r is the sinusoid of a distance (Dai et al. 2019, section 3.3, terms b and d).

    Their other bias, u, is that of the queries, where these have one, or `content`, which attention adds to a query
    before it meets keys (term c). With `segments` there is one more term, (q + w) . s, where s is one vector for keys
    of the query's own segment and another one for those of all others (Yang et al. 2019, section 2.5).
    """

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
        apart: Bool[Tensor, "B Q K"] | None = None,
    ) -> Float[Tensor, "B H Q K"]:
        """`apart`: whether query and key belong to two segments; where nobody says it, all is one."""
        most = k_pos.shape[1] - 1  # keys stand at 0, 1, 2 ..., and queries among them
        every = torch.arange(-most, most + 1, device=query.device)[None]
        vectors = self.project(self.sinusoid(every)[0].to(self.project.weight.dtype)).to(query.dtype)
        by_distance = (query + self.bias.to(query.dtype)) @ vectors.unflatten(-1, query.shape[1::2]).permute(1, 2, 0)
        index = _distances(q_pos, k_pos).clamp(-most, most)[:, None] + most
        scores = by_distance.gather(-1, index.expand(*query.shape[:-1], -1))
        if apart is None or self.segments is None or self.segment_bias is None:
            return scores
        by_segment = (query + self.segment_bias.to(query.dtype)) @ self.segments.mT.to(query.dtype)
        own, other = by_segment[..., None].unbind(-2)
        return scores + torch.where(apart[:, None], other, own)


class Bucketed(ScoreTerm):
    """One bias for each head and bucket of distances, exact near by and logarithmic far away (Raffel et al. 2020)."""

    def __init__(self, heads: int, *, buckets: int, distance: int, both_sides: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.both_sides = buckets, distance, both_sides
        self.exact = buckets // (4 if both_sides else 2)  # distances with a bucket of their own, on each side
        if not 1 <= self.exact < distance:
            raise SaccadeError(
                f"bucketed positions need at least 4 buckets and a distance above {self.exact}, "
                f"got buckets = {buckets} and distance = {distance}"
            )
        self.table = nn.Embedding(buckets, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(
        self, query: Float[Tensor, "B H Q E"], q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]
    ) -> Float[Tensor, "b2 H Q K"]:
        return self.table(self.bucket(_distances(q_pos, k_pos))).permute(0, 3, 1, 2)

    def bucket(self, away: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of a distance: half of the buckets exact, half logarithmic, for each side that can be seen."""
        half = self.buckets // 2 if self.both_sides else self.buckets
        side = (away > 0) * half if self.both_sides else torch.zeros_like(away)
        near = away.abs() if self.both_sides else (-away).clamp(min=0)
        exact = self.exact
        far = torch.log(near.clamp(min=1) / exact) / math.log(self.distance / exact) * (half - exact)
        return side + torch.where(near < exact, near, (exact + far.long()).clamp(max=half - 1))


class Alibi(ScoreTerm):
    """A penalty that grows with the distance, with another slope for each head (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(_slopes(heads)), persistent=False)

    def forward(
        self, query: Float[Tensor, "B H Q E"], q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]
    ) -> Float[Tensor, "b2 H Q K"]:
        return -self.slopes[None, :, None, None] * _distances(q_pos, k_pos).abs()[:, None]


def _frequencies(
    count: int, device: torch.device, *, step: float, base: float = 10000.0, kind: torch.dtype = torch.float32
) -> Float[Tensor, " count"]:
    """1 / base^(i step)."""
    return torch.exp(torch.arange(count, device=device, dtype=kind) * step * -math.log(base))


def _angles(positions: Int[Tensor, "b T"], frequencies: Float[Tensor, " n"]) -> Float[Tensor, "b T n"]:
    """Never in the model's own type: bfloat16 cannot count to 300."""
    return positions[..., None].to(frequencies.dtype) * frequencies


def _distances(q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]) -> Int[Tensor, "b2 Q K"]:
    """Key position minus query position."""
    return k_pos[:, None, :] - q_pos[:, :, None]


def _slopes(heads: int) -> list[float]:
    """A geometric series; for a number of heads that is no power of two, every other slope of twice the power."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power < heads:
        slopes += _slopes(2 * power)[0::2][: heads - power]
    return slopes


# ---- Learned positions of very long texts (Kitaev et al. 2020, as their code has them).


class Axial(nn.Module):
    """Position p of rows of n is [a_(p // n); b_(p % n)]: m + n vectors in the place of m n."""

    def __init__(self, dim: int, *, shape: tuple[int, int], first: int) -> None:
        super().__init__()
        if not 0 < first < dim:
            raise SaccadeError(
                f"axial positions have features for rows and for columns, which together are {dim}; "
                f"positions.first must be between 1 and {dim - 1}, got {first}"
            )
        self.shape = shape
        self.rows = nn.Embedding(shape[0], first)
        self.columns = nn.Embedding(shape[1], dim - first)
        for table in (self.rows, self.columns):
            nn.init.normal_(table.weight, std=dim**-0.5)

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        longest = self.shape[0] * self.shape[1]
        # What stands in it is asked on a CPU only: any other device would have to wait.
        if positions.device.type == "cpu" and positions.numel() and int(positions.max()) >= longest:
            raise SaccadeError(
                f"a text of {int(positions.max()) + 1} tokens has more positions than were learned, {longest}; "
                "split it, or train with a larger positions.shape"
            )
        columns = self.shape[1]
        return torch.cat((self.rows(positions // columns), self.columns(positions % columns)), -1)
