"""Attention for a language model of any order of the words (XLNet, Yang et al. 2019).

Every position has two vectors. Its content h knows its own token; its query g knows only where it stands, so that it
can be asked for the token. Both ask the same keys and values, made of the contents of the text and of a memory of the
text before. Where a key stands counts by its distance alone (Transformer-XL, Dai et al. 2019, section 3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.layers.attention import masked_softmax
from saccade.layers.dropout import Dropout
from saccade.layers.multihead import Form, HeadProjection, width_of_head
from saccade.layers.positions import Sinusoidal
from saccade.layers.record import keep as keep_weights
from saccade.layers.record import recording
from saccade.layers.residual import normalised


def earlier(order: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Whether the token at j has been seen when the one at i is asked for (Yang et al. 2019, equation 3).

    `order` numbers the positions that are asked for, in whatever order; a number below 0 means that all are given it.
    """
    return (order[:, None, :] < order[:, :, None]) | (order[:, None, :] < 0)


@dataclass(frozen=True)
class Sight:
    """What one stream sees of memory and text, K keys in all."""

    allowed: Bool[Tensor, "B Q K"] | None = None  # none: everything
    other: Bool[Tensor, "B Q K"] | None = None  # whether a key belongs to another segment
    at: Int[Tensor, "B Q"] | None = None  # where in the text it stands; none: at each position

    def standing(self, at: Int[Tensor, "B M"] | None) -> "Sight":
        """The same for those only who stand there."""
        if at is None:
            return self
        allowed, other = (
            None if x is None else x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
            for x in (self.allowed, self.other)
        )
        return Sight(allowed, other, at)


@dataclass(frozen=True)
class Surroundings:
    """What all layers need to know of one text of T positions after a memory of K - T."""

    places: Float[Tensor, "P D"]  # the distances K, K-1 ... 1-T as vectors
    content: Sight
    query: Sight


class RelativeAttention(nn.Module):
    """a_ij = (q_i + u) . k_j + (q_i + v) . W_R r(i - j) + (q_i + w) . s_ij, over sqrt(E).

    The first two terms are those of Dai et al. 2019 (section 3.3: a with b, and c with d); the last one says whether i
    and j belong to one segment (Yang et al. 2019, section 2.5).
    """

    def __init__(self, dim: int, *, heads: int, form: Form = "paper", dropout: float = 0.0) -> None:
        super().__init__()
        head_dim = width_of_head(dim, heads=heads, form=form)
        self.query, self.place, self.project = (
            HeadProjection(dim, heads=heads, head_dim=head_dim, parts=parts, form=form, bias=False)
            for parts in (1, 1, 2)
        )
        self.out = nn.Linear(heads * head_dim, dim, bias=False)
        nn.init.xavier_uniform_(self.out.weight)
        shape = (heads, head_dim)
        self.content_bias, self.place_bias, self.segment_bias = (nn.Parameter(torch.zeros(shape)) for _ in range(3))
        self.segments = nn.Parameter(torch.randn(2, *shape) * head_dim**-0.5)  # the same one, another one
        self.scale, self.dropout = head_dim**-0.5, dropout

    def forward(
        self,
        content: Float[Tensor, "B T D"],
        query: Float[Tensor, "B M D"] | None,
        around: Surroundings,
        memory: Float[Tensor, "B L D"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B M D"] | None]:
        """Both streams, with the same weights; without queries only the contents."""
        keys_values = self.project(content if memory is None else torch.cat((memory, content), 1))
        place = self.place(around.places[None])[0][0]
        to_content = self._mix(content, keys_values, place, around.content)
        return to_content, None if query is None else self._mix(query, keys_values, place, around.query)

    def _mix(
        self,
        asking: Float[Tensor, "B Q D"],
        keys_values: tuple[Tensor, ...],
        place: Float[Tensor, "P H E"],
        sight: Sight,
    ) -> Float[Tensor, "B Q D"]:
        (query,) = self.query(asking)
        key, value = keys_values
        scores = torch.einsum("bqhe,bkhe->bhqk", query + self.content_bias, key)
        by_distance = torch.einsum("bqhe,phe->bhqp", query + self.place_bias, place)
        scores = scores + aligned(by_distance, key.shape[1], sight.at)
        if sight.other is not None:
            same, apart = torch.einsum("bqhe,she->sbhq", query + self.segment_bias, self.segments)[..., None]
            scores = scores + torch.where(sight.other[:, None], apart, same)
        weights = masked_softmax(scores * self.scale, None if sight.allowed is None else sight.allowed[:, None])
        if recording():
            keep_weights(self, weights)
        dropped = F.dropout(weights, self.dropout, self.training).to(value.dtype)
        return self.out(torch.einsum("bhqk,bkhe->bqhe", dropped, value).flatten(2))


def aligned(
    by_distance: Float[Tensor, "B H Q P"], keys: int, at: Int[Tensor, "B Q"] | None = None
) -> Float[Tensor, "B H Q K"]:
    """Scores for the distances K, K-1 ... 1-T as scores for the keys, of queries at all T positions or `at` some.

    Column T - i + j of row i belongs to key j: each row begins one column earlier than the row above. Written as one
    long row, that is a cut at the beginning and rows shorter by one (Dai et al. 2019, appendix B).
    """
    length = by_distance.shape[-1] - keys
    if at is None:
        return by_distance.flatten(-2)[..., length:].unflatten(-1, (length, -1))[..., :keys]
    columns = length - at[..., None] + torch.arange(keys, device=at.device)
    return by_distance.gather(-1, columns[:, None].expand(-1, by_distance.shape[1], -1, -1))


class TwoStreamBlock(nn.Module):
    """Attention and feed-forward, each with its residual, post-norm; both streams pass the same layers."""

    def __init__(
        self, attention: RelativeAttention, feedforward: nn.Module, *, norms: Sequence[nn.Module], dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.self, self.feedforward = attention, feedforward
        self.norms = nn.ModuleList(norms)  # that of attention, that of feed-forward
        self.dropout = Dropout(dropout)

    def forward(
        self,
        content: Float[Tensor, "B T D"],
        query: Float[Tensor, "B M D"] | None,
        around: Surroundings,
        memory: Float[Tensor, "B L D"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B M D"] | None]:
        """Content and query after this layer (Yang et al. 2019, appendix A.2)."""
        to_content, to_query = self.self(content, query, around, memory)
        content = self._through(content, to_content)
        return content, None if query is None else self._through(query, to_query)

    def _through(self, x: Float[Tensor, "B N D"], more: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        x = normalised(x, self.norms[0], plus=more, dropout=self.dropout)
        return normalised(x, self.norms[1], plus=self.feedforward(x), dropout=self.dropout)


class Streams(NamedTuple):
    """What a stack gives: both streams, and what it remembers of the text for the next one."""

    content: Float[Tensor, "B T D"]
    query: Float[Tensor, "B M D"] | None
    memory: tuple[Float[Tensor, "B L D"], ...]


class TwoStreamStack(nn.Module):
    """Blocks one after the other, and a memory of the last `remember` inputs of each."""

    def __init__(self, blocks: Sequence[TwoStreamBlock], *, dim: int, remember: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # of TwoStreamBlock, which ModuleList's type cannot say
        self.sinusoids = Sinusoidal(dim, layout="concatenated")
        self.dim, self.remember, self.dropout = dim, remember, Dropout(dropout)

    def forward(
        self,
        content: Float[Tensor, "B T D"],
        query: Float[Tensor, "B M D"] | None = None,
        *,
        allowed: Bool[Tensor, "B T T"] | None = None,
        targets: Int[Tensor, "B M"] | None = None,
        keep: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        memory: Sequence[Float[Tensor, "B L D"]] = (),
    ) -> Streams:
        """One text after those in `memory`, into which no gradient goes.

        `allowed` is what a query may see, as `earlier` makes it; contents see themselves too. All of memory may be
        seen, and belongs to segment 0.
        """
        if query is not None and allowed is None:
            raise ValueError("a query that may see everything sees the token it is asked for; give `allowed`")
        seen: Sequence[Tensor | None] = [part.detach() for part in memory] or [None] * len(self.blocks)
        before = memory[0].shape[1] if memory else 0
        around = self.around(content, before, allowed, targets, keep, segments)
        remembered = []
        for block, past in zip(self.blocks, seen, strict=True):
            if self.remember:
                along = content if past is None else torch.cat((past, content), 1)
                remembered.append(along[:, -self.remember :].detach())
            content, query = block(content, query, around, past)
        return Streams(content, query, tuple(remembered))

    def around(
        self,
        x: Float[Tensor, "B T D"],
        before: int,
        allowed: Bool[Tensor, "B T T"] | None = None,
        targets: Int[Tensor, "B M"] | None = None,
        keep: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Surroundings:
        """The same for all blocks, where `before` states are remembered."""
        length = x.shape[1]
        distances = torch.arange(before + length, -length, -1, device=x.device)
        places = self.dropout(self.sinusoids(distances[None])[0].to(x.dtype))
        other = None
        if segments is not None:
            other = segments[:, :, None] != F.pad(segments, (before, 0))[:, None, :]
        if keep is not None:
            real = keep[:, None, :].expand(-1, length, -1)
            allowed = real if allowed is None else allowed & real
        if allowed is None:
            return Surroundings(places, Sight(None, other), Sight(None, other).standing(targets))
        itself = torch.eye(length, dtype=torch.bool, device=x.device)
        with_itself, without = (F.pad(part, (before, 0), value=True) for part in (allowed | itself, allowed))
        return Surroundings(places, Sight(with_itself, other), Sight(without, other).standing(targets))
