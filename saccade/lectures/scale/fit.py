"""How a quantity grows: the exponent, fitted by least squares to logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """b of y = a x^b."""
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    above = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return above / sum((a - mean_u) ** 2 for a in u)
