"""The tables `score` of a stack: how attention compares queries with keys. Luong's local attention is here too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from saccade.config.kinds import ByKind, Custom
from saccade.config.table import Count, ScoreTraits, Table


class ScaledDot(Table, ScoreTraits):
    """e = q . k / sqrt(d_k) (Vaswani et al. 2017); the fastest one, by fused kernels."""

    kind: Literal["scaled-dot"] = "scaled-dot"
    """Chooses this score: the scaled dot product."""


class Dot(Table, ScoreTraits):
    """e = q . k (Luong et al. 2015), for queries and keys of one width."""

    kind: Literal["dot"] = "dot"
    """Chooses this score: the dot product, not scaled."""


class General(Table, ScoreTraits):
    """e = q . W k, a bilinear form ("general" of Luong et al. 2015); each head has its own W."""

    kind: Literal["general"] = "general"
    """Chooses this score: a bilinear form of query and key."""


class Additive(Table, ScoreTraits):
    """e = v . tanh(W q + U k) (Bahdanau et al. 2015); each head has its own v, W and U."""

    kind: Literal["additive"] = "additive"
    """Chooses this score: a network with one hidden layer."""
    hidden_dim: Count | None = None
    """Width of the hidden layer; time and memory are proportional to it. None: the width of the queries, which is that
    of one head in multi-head attention."""

    @property
    def attends_before_step(self) -> bool:
        return True


class Concat(Table, ScoreTraits):
    """e = v . tanh(W [q; k]) ("concat" of Luong et al. 2015); each head has its own v and W."""

    kind: Literal["concat"] = "concat"
    """Chooses this score: a network with one hidden layer over query and key concatenated."""
    hidden_dim: Count | None = None
    """Width of the hidden layer; time and memory are proportional to it. None: the width of the queries, which is that
    of one head in multi-head attention."""


def expand_kind(value: Any) -> Any:
    """`score = "additive"` is short for `score = { kind = "additive" }`."""
    return {"kind": value} if isinstance(value, str) else value


Score = Annotated[ScaledDot | Dot | General | Additive | Concat | Custom, ByKind(), BeforeValidator(expand_kind)]


class LocalWindow(Table):
    """Local attention (Luong et al. 2015, section 3.2): only memory states in a window around a position p_t."""

    kind: Literal["predictive", "monotonic"] = "predictive"
    """"monotonic" (local-m): p_t = t, for sources and outputs in the same order. "predictive" (local-p): p_t is
    predicted from the hidden state, and the weights are multiplied by a Gaussian around it."""
    window: Count = 10
    """Memory states on each side of p_t that can be attended to (D in the paper); the Gaussian has the standard
    deviation D / 2."""
