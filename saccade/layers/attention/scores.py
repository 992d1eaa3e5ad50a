"""Attention and its score functions.

`attend` is the definition of attention: e = f_att(q, k), a = softmax(e), y = sum a v. Every other layer projects its
inputs to queries, keys and values and computes the same.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import ScoreCapabilities, get_score_capabilities
from saccade.errors import SaccadeError

Score = Callable[[Tensor, Tensor], Tensor]


def attend(
    query: Float[Tensor, "*b Q Dq"],
    key: Float[Tensor, "*b K Dk"],
    value: Float[Tensor, "*b K Dv"],
    *,
    score: Score | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*b Q Dv"], Float[Tensor, "*b Q K"]]:
    """The weighted sum of values and the attention weights; `score` is f_att, by default the scaled dot product."""
    scores = (scaled_dot if score is None else score)(query, key)
    weights = masked_softmax(scores, mask)
    return F.dropout(weights, dropout).to(value.dtype) @ value, weights


def masked_softmax(scores: Float[Tensor, "... Q K"], mask: Bool[Tensor, "..."] | None) -> Float[Tensor, "... Q K"]:
    """Softmax over the keys where `mask` is True; a query that may attend to no key gets zeros, never NaN."""
    if mask is None:
        return scores.softmax(-1)
    scores = scores.masked_fill(~mask, -math.inf)
    empty = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def dot(query: Float[Tensor, "... Q E"], key: Float[Tensor, "... K E2"]) -> Float[Tensor, "... Q K"]:
    """e = q . k"""
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"dot-product attention needs queries and keys of one width, got D_Q = {query.shape[-1]} and "
            f"D_X = {key.shape[-1]}; project one of them or use additive or bilinear scores"
        )
    return query @ key.transpose(-2, -1)


def scaled_dot(query: Float[Tensor, "... Q E"], key: Float[Tensor, "... K E2"]) -> Float[Tensor, "... Q K"]:
    """e = q . k / sqrt(D_Q) (Vaswani et al. 2017, equation 1)"""
    return dot(query / math.sqrt(query.shape[-1]), key)


class HeadwiseLinear(nn.Module):
    """A linear map without bias for each head, initialized as `nn.Linear` is."""

    def __init__(self, dim: int, out_dim: int, *, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, dim, out_dim))
        nn.init.uniform_(self.weight, -(dim**-0.5), dim**-0.5)

    def forward(self, x: Float[Tensor, "*b H N D"]) -> Float[Tensor, "*b H N out"]:
        return x @ self.weight


def build_linear(dim: int, out_dim: int, heads: int | None) -> nn.Linear | HeadwiseLinear:
    return nn.Linear(dim, out_dim, bias=False) if heads is None else HeadwiseLinear(dim, out_dim, heads=heads)


class Additive(nn.Module):
    """e = v . tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2); with `heads`, each has its own v, W and U."""

    capabilities = ScoreCapabilities(projected_keys=True, static_shapes=True)

    def __init__(self, query_dim: int, *, key_dim: int, hidden_dim: int, heads: int | None = None) -> None:
        super().__init__()
        self.hidden_dim, self.heads = hidden_dim, heads
        self.query = build_linear(query_dim, hidden_dim, heads)
        self.key = build_linear(key_dim, hidden_dim, heads)
        self.energy = build_linear(hidden_dim, 1, heads)

    def forward(self, query: Float[Tensor, "... Q Dq"], key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... Q K"]:
        return self.score_projected(query, self.key(key))

    def project_keys(self, key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... K E"]:
        return self.key(key)

    def score_projected(
        self, query: Float[Tensor, "... Q Dq"], keys: Float[Tensor, "... K E"]
    ) -> Float[Tensor, "... Q K"]:
        """Scores for keys U k that are projected already, which is done once for all decoding steps."""
        hidden = torch.tanh(self.query(query).unsqueeze(-2) + keys.unsqueeze(-3))
        if self.heads is None:
            return self.energy(hidden).squeeze(-1)
        pairs = hidden.shape[-3:-1]  # one axis for all pairs of query and key, so that heads come before it
        return self.energy(hidden.flatten(-3, -2)).squeeze(-1).unflatten(-1, pairs)


class Concat(Additive):
    """e = v . tanh(W [q; k]) (the "concat" score of Luong et al. 2015).

    W is stored as its blocks for q and for k, so that keys are projected once; they are initialized as one matrix.
    """

    def __init__(self, query_dim: int, *, key_dim: int, hidden_dim: int, heads: int | None = None) -> None:
        super().__init__(query_dim, key_dim=key_dim, hidden_dim=hidden_dim, heads=heads)
        bound = (query_dim + key_dim) ** -0.5
        for block in (self.query, self.key):
            nn.init.uniform_(block.weight, -bound, bound)


class Bilinear(nn.Module):
    """e = q . W k (the "general" score of Luong et al. 2015); with `heads`, each head has its own W."""

    capabilities = ScoreCapabilities(projected_keys=True, dot_product=True, static_shapes=True)

    def __init__(self, query_dim: int, *, key_dim: int, heads: int | None = None) -> None:
        super().__init__()
        self.key = build_linear(key_dim, query_dim, heads)

    def forward(self, query: Float[Tensor, "... Q Dq"], key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... Q K"]:
        return self.score_projected(query, self.key(key))

    def project_query(self, query: Float[Tensor, "... Q Dq"]) -> Float[Tensor, "... Q Dq"]:
        return query

    def project_keys(self, key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... K Dq"]:
        return self.key(key)

    def score_projected(
        self, query: Float[Tensor, "... Q E"], keys: Float[Tensor, "... K E"]
    ) -> Float[Tensor, "... Q K"]:
        return dot(query, keys)


class Dot(nn.Module):
    """e = q . k (the "dot" score of Luong et al. 2015), or q . k / sqrt(D_Q) with `scaled`; both have one width."""

    capabilities = ScoreCapabilities(static_shapes=True)

    def __init__(self, *, scaled: bool = False) -> None:
        super().__init__()
        self.scaled = scaled

    def forward(self, query: Float[Tensor, "... Q E"], key: Float[Tensor, "... K E"]) -> Float[Tensor, "... Q K"]:
        return scaled_dot(query, key) if self.scaled else dot(query, key)


def project_keys(score: Any, key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... K E"]:
    """Keys as `score_projected` takes them: projected, where the score declares `projected_keys`."""
    return score.project_keys(key) if get_score_capabilities(score).projected_keys else key


def score_projected(
    score: Any, query: Float[Tensor, "... Q Dq"], keys: Float[Tensor, "... K E"]
) -> Float[Tensor, "... Q K"]:
    """The scores of queries and of keys from `project_keys`; checks the shape, for scores that users bring."""
    scores = (score.score_projected if get_score_capabilities(score).projected_keys else score)(query, keys)
    expected = (*query.shape[:-1], keys.shape[-2])
    if scores.shape != expected:
        raise SaccadeError(
            f"the attention score {get_score_name(score)} must return scores (..., queries, keys) = {expected}, got "
            f"{tuple(scores.shape)}; correct its code"
        )
    return scores


def explain_not_static(score: Any) -> str:
    """Why torch.compile and CUDA graphs cannot hold a score; empty where they can."""
    if score is None or get_score_capabilities(score).static_shapes:
        return ""
    return f"attention score {get_score_name(score)} does not declare static_shapes"


def get_score_name(score: Any) -> str:
    """The name of a score's class, or of the score itself where it is a function."""
    return str(getattr(score, "__name__", type(score).__name__))


class AttentionLayer(nn.Module):
    """Single-head self-attention as in the lectures: Q = X W_Q, K = X W_K, V = X W_V, Y = softmax(f_att(Q, K)) V."""

    def __init__(self, dim: int, *, key_dim: int, value_dim: int, score: Score | None = None) -> None:
        super().__init__()
        self.query = nn.Linear(dim, key_dim, bias=False)
        self.key = nn.Linear(dim, key_dim, bias=False)
        self.value = nn.Linear(dim, value_dim, bias=False)
        self.score = score

    def forward(
        self, x: Float[Tensor, "... N D"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "... N value_dim"]:
        return attend(self.query(x), self.key(x), self.value(x), score=self.score, mask=mask)[0]
