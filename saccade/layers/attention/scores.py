"""Attention and its score functions.

`attend` is the definition of attention: e = f_att(q, k), a = softmax(e), y = sum a v. Every other layer projects its
inputs to queries, keys and values and computes the same.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

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
    scores = (score or scaled_dot)(query, key)
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


class Additive(nn.Module):
    """e = v . tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, query_dim: int, *, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key = nn.Linear(key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query: Float[Tensor, "... Q Dq"], key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... Q K"]:
        return self.score_projected(query, self.key(key))

    def score_projected(
        self, query: Float[Tensor, "... Q Dq"], keys: Float[Tensor, "... K E"]
    ) -> Float[Tensor, "... Q K"]:
        """Scores for keys U k that are projected already, which is done once for all decoding steps."""
        return self.energy(torch.tanh(self.query(query).unsqueeze(-2) + keys.unsqueeze(-3))).squeeze(-1)


class Bilinear(nn.Module):
    """e = q . W k (the "general" score of Luong et al. 2015)."""

    def __init__(self, query_dim: int, *, key_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(key_dim, query_dim, bias=False)

    def forward(self, query: Float[Tensor, "... Q Dq"], key: Float[Tensor, "... K Dk"]) -> Float[Tensor, "... Q K"]:
        return self.score_projected(query, self.key(key))

    def score_projected(
        self, query: Float[Tensor, "... Q E"], keys: Float[Tensor, "... K E"]
    ) -> Float[Tensor, "... Q K"]:
        return dot(query, keys)


class Dot(nn.Module):
    """e = q . k (the "dot" score of Luong et al. 2015), for queries and keys of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Identity()

    def forward(self, query: Float[Tensor, "... Q E"], key: Float[Tensor, "... K E"]) -> Float[Tensor, "... Q K"]:
        return self.score_projected(query, self.key(key))

    def score_projected(
        self, query: Float[Tensor, "... Q E"], keys: Float[Tensor, "... K E"]
    ) -> Float[Tensor, "... Q K"]:
        return dot(query, keys)


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
