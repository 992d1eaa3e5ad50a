"""Single-head attention of a recurrent writer to its memory: soft, local, with neighbouring cells, or hard."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import get_score_capabilities
from saccade.layers.attention.scores import (
    Additive,
    Score,
    attend,
    explain_not_static,
    masked_softmax,
    score_projected,
)
from saccade.layers.memory import Memory
from saccade.layers.record import is_recording, record_weights

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


class LocalWindow(nn.Module):
    """The window of local attention: positions s with |s - p_t| <= D, and local-p's Gaussian around p_t.

    p_t = t (local-m), or p_t = S sigmoid(v . tanh(W q)) for a source of length S (local-p), where the weights of the
    window are multiplied by exp(-(s - p_t)^2 / (2 (D / 2)^2)) (Luong et al. 2015, section 3.2). s and t count from 1.
    """

    def __init__(self, query_dim: int, *, radius: int, predictive: bool) -> None:
        super().__init__()
        self.radius = radius
        self.hidden = nn.Linear(query_dim, query_dim, bias=False) if predictive else None
        self.center = nn.Linear(query_dim, 1, bias=False) if predictive else None

    def forward(
        self, query: Float[Tensor, "B Q D"], steps: Int[Tensor, "B Q"], keep: Bool[Tensor, "B 1 S"]
    ) -> tuple[Bool[Tensor, "B Q S"], Float[Tensor, "B Q S"] | None]:
        """The keys inside the window of each query, which is at `steps` from 0 on, and their factors, if any."""
        positions = torch.arange(1, keep.shape[-1] + 1, device=query.device)
        if self.hidden is None or self.center is None:
            return ((positions - (steps[..., None] + 1)).abs() <= self.radius) & keep, None
        lengths = keep.sum(-1, keepdim=True)
        distances = positions - lengths * torch.sigmoid(self.center(torch.tanh(self.hidden(query))))
        return (distances.abs() <= self.radius) & keep, torch.exp(-2 * (distances / self.radius) ** 2)


class SoftAttention(nn.Module):
    """Attention to memory: e = f_att(q, h), a = softmax(e), context c = sum a h; local attention with a window."""

    def __init__(self, score: Score, local: LocalWindow | None = None) -> None:
        super().__init__()
        self.local = local
        self.set_score(score)

    def set_score(self, score: Score) -> None:
        """`score` is one of scores.py, or what a user brings; see `ScoreCapabilities`."""
        self._modules.pop("score", None)  # a function cannot be assigned in place of a module
        self.score: Any = score
        self.projects_keys = get_score_capabilities(score).projected_keys
        self.score_problem = explain_not_static(score)  # why torch.compile and CUDA graphs cannot hold it

    def list_steps(self, lengths: Int[Tensor, " B"], count: int) -> list[tuple[Int[Tensor, "B 1"], ...]]:
        """For each of the next `count` steps the arguments of `forward` behind the memory: positions, if it is local.

        `lengths` are the positions so far.
        """
        if self.local is None:
            return [()] * count
        return [(lengths[:, None] + step,) for step in range(count)]

    def project_memory(self, memory: Memory) -> ProjectedMemory:
        values = memory.states if memory.values is None else memory.values.to(memory.states.dtype)
        return ProjectedMemory(self.project_keys(memory), values, memory.padding[:, None])

    def project_keys(self, memory: Memory) -> Float[Tensor, "B S E"]:
        return self.score.project_keys(memory.states) if self.projects_keys else memory.states

    def forward(
        self, query: Float[Tensor, "B Q D"], memory: ProjectedMemory, steps: Int[Tensor, "B Q"] | None = None
    ) -> tuple[Float[Tensor, "B Q M"], Float[Tensor, "B Q S"]]:
        """Context vectors and attention weights; `steps` are the positions of the queries, for local attention."""
        score = self.score.score_projected if self.projects_keys else partial(score_projected, self.score)
        if self.local is None or steps is None:
            return attend(query, memory.keys, memory.values, score=score, mask=memory.mask)
        allowed, factors = self.local(query, steps, memory.mask)
        weights = masked_softmax(score(query, memory.keys), allowed)
        weights = weights if factors is None else weights * factors
        return weights @ memory.values, weights


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

    In evaluation the position with the largest weight is taken. In training, the `soft_rows` of memory use soft
    attention instead, because learning from samples alone is slow. The buffer `usual` is the REINFORCE baseline: a
    moving average of the log-likelihood of tokens.
    """

    usual: Float[Tensor, ""]

    def __init__(self, score: Score) -> None:
        super().__init__(score)
        self.register_buffer("usual", torch.zeros(()))

    def project_memory(self, memory: Memory) -> ProjectedMemory:
        return super().project_memory(memory)._replace(use_soft=memory.soft_rows if self.training else None)

    def forward(  # type: ignore[override]  # also returns the sampled positions
        self, query: Float[Tensor, "B Q D"], memory: ProjectedMemory, steps: Int[Tensor, "B Q"] | None = None
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
