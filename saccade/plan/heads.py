"""How many tokens pass a writer for each that is read, and what heads over the states of a reader keep of each."""

from __future__ import annotations

from typing import Any

from saccade.config.schema import Masked, Permuted, Recipe
from saccade.model.writers.masked import MaskedWriter

SINGLE = 4  # bytes of float32
STATISTICS = 8  # bytes: mean and scale of a norm, in float32


def is_head(part: Any) -> bool:
    """Whether a part has no stack of its own."""
    return part is not None and getattr(part, "stack", None) is None


def written_share(recipe: Recipe, model: Any) -> float | None:
    """Tokens that pass the writer for each that is read, where it is a head; None where it has a stack."""
    if not is_head(model.writer) or model.reader is None:
        return None
    if isinstance(model.writer, MaskedWriter):
        rates = [objective.rate for objective in recipe.objectives if isinstance(objective, Masked)]
    else:
        rates = [1 / objective.one_in for objective in recipe.objectives if isinstance(objective, Permuted)]
    return rates[0] if rates else 0.0


def kept_by_head(head: Any, dim: int, *, narrow: int, wide: int) -> tuple[float, float]:
    """Bytes for a token that is read, its last state, and for one that is hidden.

    Of that: its state, and this as the product reads it; what goes into the activation, and into the norm in float32.
    """
    if not isinstance(head, MaskedWriter):
        return wide * dim, 0.0
    width = int(head.transform.weight.shape[0])
    return wide * dim, (wide + narrow) * dim + (narrow + SINGLE) * width + STATISTICS
