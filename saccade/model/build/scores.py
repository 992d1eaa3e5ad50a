"""Builds attention scores from their tables of a recipe; a score of the user's own is called with its widths."""

import inspect
from typing import Any

from saccade.errors import SaccadeError
from saccade.layers.attention.scores import Additive, Bilinear, Concat, Dot


def build_score(table: Any, query_dim: int, key_dim: int, *, heads: int | None = None) -> Any:
    """Build the score of one attention layer; `heads` for multi-head attention, where widths are those of a head."""
    match table.kind:
        case "scaled-dot" | "dot":
            return Dot(scaled=table.kind == "scaled-dot")
        case "general":
            return Bilinear(query_dim, key_dim=key_dim, heads=heads)
        case "additive" | "concat":
            score = Additive if table.kind == "additive" else Concat
            return score(query_dim, key_dim=key_dim, hidden_dim=table.hidden_dim or query_dim, heads=heads)
    return build_own_score(table, query_dim, key_dim, heads=heads or 1)


def build_own_score(table: Any, query_dim: int, key_dim: int, *, heads: int) -> Any:
    """Call the user's class or function with both widths and, if it has a parameter of that name, with `heads`."""
    accepted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(table.maker).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in accepted]
    if len(names) not in (2, 3) or (len(names) == 3 and names[2] != "heads"):
        raise SaccadeError(
            f"the attention score '{table.kind}' must take (query_dim, key_dim) or (query_dim, key_dim, heads) and "
            f"keyword-only settings, got ({', '.join(names)}); change its parameters"
        )
    score = table.make(query_dim, key_dim, *([heads] if len(names) == 3 else []))
    if not callable(score):
        raise SaccadeError(
            f"the attention score '{table.kind}' must return a module or function from queries and keys to scores, got "
            f"{type(score).__name__}"
        )
    return score
