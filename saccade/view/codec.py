"""Attention weights as short text: numbers of 8, 16 or 32 bits, deflated, in base64. `page/codec.js` reads them."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from saccade.errors import SaccadeError

EXACT = 100_000  # so many weights in a document stay float32
FINE = 500_000  # so many get 16 bits, more than that 8
LEVELS = {"u8-deflate": 255, "u16-deflate": 65535}  # the largest number of each codec
SIDES = ("rows", "columns")


def packed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with packed weights, in the same precision for all its maps; `other` is packed for itself.

    Small documents keep float32. In larger ones a weight w of a head whose largest is m is kept as
    round(n sqrt(w / m)) with n = 65535 or 255, so that it comes back with an error of at most
    sqrt(w m) / n + m / (4 n^2): never more than 0.4 % of m, and far less for small weights.
    """
    maps = [{**entry, "weights": checked(entry, document["labels"])} for entry in document["maps"]]
    codec = _codec(sum(entry["weights"].size for entry in maps))
    small = [{**entry, "weights": pack(entry["weights"], codec), "shape": entry["weights"].shape} for entry in maps]
    other = document.get("other")
    return {**document, "maps": small, **({"other": packed(other)} if other else {})}


def pack(weights: np.ndarray, codec: str) -> dict[str, Any]:
    """Weights (H, T, S) as `{"codec", "data", "tops"}`; `tops` is the largest weight of each head."""
    tops = weights.max(axis=(1, 2), initial=0.0).astype(np.float32)
    if codec == "f32-deflate":
        numbers = weights.astype("<f4")
    else:
        scale = np.where(tops > 0, tops, 1)[:, None, None]
        most = LEVELS[codec]
        numbers = np.rint(most * np.sqrt(weights / scale)).astype("<u2" if most > 255 else "u1")
    data = b64encode(zlib.compress(numbers.tobytes(), 9)).decode("ascii")
    return {"codec": codec, "data": data, "tops": tops.tolist()}


def checked(entry: Mapping[str, Any], labels: Mapping[str, list[str]]) -> np.ndarray:
    """The weights (H, T, S) of a map as float32, where they fit its labels."""
    try:
        weights = np.asarray(entry["weights"], dtype=np.float32)
    except (TypeError, ValueError):
        raise SaccadeError(
            f"weights of {entry['address']} must be numbers (heads, rows, columns), got others"
        ) from None
    wanted = tuple(len(labels[entry[side]]) for side in SIDES)
    if weights.ndim != 3 or weights.shape[1:] != wanted:
        raise SaccadeError(
            f"weights of {entry['address']} must have shape (heads, {wanted[0]}, {wanted[1]}) as its labels, "
            f"got {weights.shape}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise SaccadeError(f"weights of {entry['address']} must be finite and not below 0; look at the model's output")
    return weights


def _codec(count: int) -> str:
    if count <= EXACT:
        return "f32-deflate"
    return "u16-deflate" if count <= FINE else "u8-deflate"
