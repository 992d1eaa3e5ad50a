"""Single-head attention of a recurrent writer to its memory: soft, with neighbouring cells, or hard."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.layers.attention.scores import Additive, Bilinear, Dot, attend
from saccade.layers.memory import Memory
from saccade.layers.record import is_recording, record_weights

SOFT_ATTENTION_RATE = 0.5  # share of sequences trained with soft attention (Xu et al. 2015, section 4.1)
NOT_SAMPLED = -1  # in place of a sampled position where attention was soft


class ProjectedMemory(NamedTuple):
    """Keys and values of memory, projected once for all decoding steps."""

    keys: Float[Tensor, "B S E"]
    values: Float[Tensor, "B S M"]
    mask: Bool[Tensor, "B 1 S"]
    use_soft: Bool[Tensor, "B 1"] | None = None  # hard attention in training: rows that use soft attention instead

    def select_rows(self, indices: Int[Tensor, " C"]) -> "ProjectedMemory":
        keys, values, mask = (part.index_select(0, indices) for part in self[:3])
        return ProjectedMemory(
            keys, values, mask, None if self.use_soft is None else self.use_soft.index_select(0, indices)
        )


class SoftAttention(nn.Module):
    """Attention to memory: e = f_att(q, h), a = softmax(e), context c = sum a h."""

    def __init__(self, score: Additive | Bilinear | Dot) -> None:
        super().__init__()
        self.score = score

    def project_memory(self, memory: Memory) -> ProjectedMemory:
        values = memory.states if memory.values is None else memory.values.to(memory.states.dtype)
        return ProjectedMemory(self.project_keys(memory), values, memory.padding[:, None])

    def project_keys(self, memory: Memory) -> Float[Tensor, "B S E"]:
        return self.score.key(memory.states)

    def forward(
        self, query: Float[Tensor, "B Q D"], memory: ProjectedMemory
    ) -> tuple[Float[Tensor, "B Q M"], Float[Tensor, "B Q S"]]:
        return attend(query, memory.keys, memory.values, score=self.score.score_projected, mask=memory.mask)


class NeighborhoodAttention(SoftAttention):
    """Additive attention over a feature map; keys include the eight neighbouring cells (Li et al. 2019, equation 2).

    e_ij = v . tanh(W_v v_ij + sum over the neighbours pq of W_pq v_pq + W_h h); cells outside the picture are zero.
    """

    def __init__(self, query_dim: int, *, key_dim: int, hidden_dim: int) -> None:
        super().__init__(Additive(query_dim, key_dim=key_dim, hidden_dim=hidden_dim))
        self.around = nn.Conv2d(key_dim, hidden_dim, 3, padding=1, bias=False)

    def project_keys(self, memory: Memory) -> Float[Tensor, "B S E"]:
        assert memory.grid is not None, "recipe validation allows this attention only for readers with a grid"
        cells = memory.states.transpose(1, 2).unflatten(2, memory.grid)
        neighbors = F.conv2d(cells, self.around.weight * self.build_neighbor_mask(), padding=1)
        return self.score.key(memory.states) + neighbors.flatten(2).transpose(1, 2)

    def build_neighbor_mask(self) -> Float[Tensor, "3 3"]:
        """Zero in the center, whose weights are W_v, and one for the eight neighbours."""
        return F.pad(self.around.weight.new_zeros(1, 1), (1, 1, 1, 1), value=1.0)


class HardAttention(SoftAttention):
    """Hard attention: one position of memory for each query, sampled from the weights (Xu et al. 2015, section 4.1).

    In evaluation the position with the largest weight is taken. In training, a share of the sequences uses soft
    attention, as in the paper, because learning from samples alone is slow. The buffer `usual` is the REINFORCE
    baseline: a moving average of the log-likelihood of tokens.
    """

    usual: Float[Tensor, ""]

    def __init__(self, score: Additive | Bilinear | Dot) -> None:
        super().__init__(score)
        self.register_buffer("usual", torch.zeros(()))

    def project_memory(self, memory: Memory) -> ProjectedMemory:
        projected = super().project_memory(memory)
        if not self.training:
            return projected
        uniform = torch.rand(len(memory.states), 1, device=memory.states.device)
        return projected._replace(use_soft=uniform < SOFT_ATTENTION_RATE)

    def forward(  # type: ignore[override]  # also returns the sampled positions
        self, query: Float[Tensor, "B Q D"], memory: ProjectedMemory
    ) -> tuple[Float[Tensor, "B Q M"], Float[Tensor, "B Q S"], Int[Tensor, "B Q"]]:
        """Context vectors, attention weights and sampled positions; zero context where memory is all padding."""
        soft_context, weights = super().forward(query, memory)
        scores = weights.detach()
        if self.training:
            scores = scores / torch.empty_like(scores).exponential_()  # their argmax is a sample from the weights
        sampled = scores.argmax(-1)
        context = memory.values.gather(1, sampled[..., None].expand(-1, -1, memory.values.shape[-1]))
        context = context * memory.mask.any(-1, keepdim=True)
        if memory.use_soft is not None:
            context = torch.where(memory.use_soft[..., None], soft_context, context)
            sampled = sampled.masked_fill(memory.use_soft, NOT_SAMPLED)
        return context, weights, sampled


def record_attention(
    layer: SoftAttention, weights: Sequence[Float[Tensor, "B t S"]], sampled: Sequence[Int[Tensor, "B t"]] = ()
) -> None:
    """Record the weights of a sequence or of one step, as those of a single head.

    For hard attention they are 1 at the sampled position and 0 elsewhere.
    """
    if is_recording():
        maps = torch.cat(tuple(weights), 1)
        maps = F.one_hot(torch.cat(tuple(sampled), 1), maps.shape[-1]).to(maps) if sampled else maps
        record_weights(layer, maps[:, None])
