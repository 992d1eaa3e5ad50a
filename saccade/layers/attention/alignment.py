"""One look at memory for each query; how a writer looks is one of these."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.layers.attention.scores import Additive, Bilinear, Dot, attend
from saccade.layers.memory import Memory
from saccade.layers.record import keep, recording

MIXED = 0.5  # of texts, while hard looks learn (Xu et al. 2015, section 4.1)
NOT_DRAWN = -1  # stands for the number of what was drawn, where nothing was


class Source(NamedTuple):
    """Memory as it is looked at: keys were projected once, however many words are written."""

    keys: Float[Tensor, "B S E"]
    values: Float[Tensor, "B S M"]
    mask: Bool[Tensor, "B 1 S"]
    mixed: Bool[Tensor, "B 1"] | None = None  # of hard looks while they learn: whose are not

    def rows(self, indices: Int[Tensor, " C"]) -> "Source":
        keys, values, mask = (part.index_select(0, indices) for part in self[:3])
        return Source(keys, values, mask, None if self.mixed is None else self.mixed.index_select(0, indices))


class Look(nn.Module):
    """One look at memory for each query: e = f_att(q, h), a = softmax(e), c = sum a h."""

    def __init__(self, score: Additive | Bilinear | Dot) -> None:
        super().__init__()
        self.score = score

    def source(self, memory: Memory) -> Source:
        values = memory.states if memory.values is None else memory.values.to(memory.states.dtype)
        return Source(self.keys(memory), values, memory.padding[:, None])

    def keys(self, memory: Memory) -> Float[Tensor, "B S E"]:
        return self.score.key(memory.states)

    def forward(
        self, query: Float[Tensor, "B Q D"], source: Source
    ) -> tuple[Float[Tensor, "B Q M"], Float[Tensor, "B Q S"]]:
        return attend(query, source.keys, source.values, score=self.score.energies, mask=source.mask)


class LookAround(Look):
    """e = v . tanh(W_v v_ij + sum over the eight cells around of W_pq v_pq + W_h h) (Li et al. 2019, equation 2).

    What lies outside of the picture counts as zeros.
    """

    def __init__(self, query_dim: int, *, key_dim: int, hidden: int) -> None:
        super().__init__(Additive(query_dim, key_dim=key_dim, hidden=hidden))
        self.around = nn.Conv2d(key_dim, hidden, 3, padding=1, bias=False)

    def keys(self, memory: Memory) -> Float[Tensor, "B S E"]:
        assert memory.grid is not None, "the recipe was checked: cells lie in a picture"
        cells = memory.states.transpose(1, 2).unflatten(2, memory.grid)
        near = F.conv2d(cells, self.around.weight * self.without_middle(), padding=1)
        return self.score.key(memory.states) + near.flatten(2).transpose(1, 2)

    def without_middle(self) -> Float[Tensor, "3 3"]:
        """Zero for the cell itself, whose weights are W_v, and one for those around it."""
        return F.pad(self.around.weight.new_zeros(1, 1), (1, 1, 1, 1), value=1.0)


class HardLook(Look):
    """One state of memory for each query, drawn by the weights (Xu et al. 2015, section 4.1); when it writes, the best.

    While it learns, the looks of some texts mix all states as others do, as there: chance alone teaches too slowly.
    `usual` is the moving average of the log-likelihood of tokens, which tells training whether a draw was a good one.
    """

    usual: Float[Tensor, ""]

    def __init__(self, score: Additive | Bilinear | Dot) -> None:
        super().__init__(score)
        self.register_buffer("usual", torch.zeros(()))

    def source(self, memory: Memory) -> Source:
        mixed = torch.rand(len(memory.states), 1, device=memory.states.device) < MIXED if self.training else None
        return super().source(memory)._replace(mixed=mixed)

    def forward(  # type: ignore[override]  # what was drawn is one more
        self, query: Float[Tensor, "B Q D"], source: Source
    ) -> tuple[Float[Tensor, "B Q M"], Float[Tensor, "B Q S"], Int[Tensor, "B Q"]]:
        """What was drawn, the weights, and the number of what was drawn; where there is nothing to look at, zeros."""
        mixture, weights = super().forward(query, source)
        shares = weights.detach()
        if self.training:
            shares = shares / torch.empty_like(shares).exponential_()  # the largest of these is a draw by the weights
        chosen = shares.argmax(-1)
        seen = source.values.gather(1, chosen[..., None].expand(-1, -1, source.values.shape[-1]))
        seen = seen * source.mask.any(-1, keepdim=True)
        if source.mixed is not None:
            seen = torch.where(source.mixed[..., None], mixture, seen)
            chosen = chosen.masked_fill(source.mixed, NOT_DRAWN)
        return seen, weights, chosen


def show(cross: Look, weights: Sequence[Float[Tensor, "B t S"]], drawn: Sequence[Int[Tensor, "B t"]] = ()) -> None:
    """Leaves the weights of a text, or of a step, with whoever is looking: they are those of one head.

    Of hard looks, these are one for what was drawn, and zero for all else.
    """
    if recording():
        looks = torch.cat(tuple(weights), 1)
        looks = F.one_hot(torch.cat(tuple(drawn), 1), looks.shape[-1]).to(looks) if drawn else looks
        keep(cross, looks[:, None])
