"""Compact encoding of attention weights: 8, 16 or 32 bits each, deflated, in base64. `page/codec.js` decodes them."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from saccade.errors import SaccadeError

MAX_FLOAT32_WEIGHTS = 100_000  # larger documents are quantized to 16 bits
MAX_UINT16_WEIGHTS = 500_000  # larger ones to 8 bits
MAX_CODES = {"u8-deflate": 255, "u16-deflate": 65535}  # the largest code of each quantized codec
SIDES = ("rows", "columns")


def pack_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the weights of a document, all maps with the same precision; `other` is encoded on its own.

    Small documents keep float32. In larger ones a weight w of a head with the maximum m is quantized to
    round(n sqrt(w / m)) with n = 65535 or 255. The quantization error is at most sqrt(w m) / n + m / (4 n^2): never
    more than 0.4 % of m, and far less for small weights.
    """
    maps = [{**entry, "weights": check_weights(entry, document["labels"])} for entry in document["maps"]]
    codec = _choose_codec(sum(entry["weights"].size for entry in maps))
    encoded = [
        {**entry, "weights": pack_weights(entry["weights"], codec), "shape": entry["weights"].shape} for entry in maps
    ]
    other = document.get("other")
    return {**document, "maps": encoded, **({"other": pack_document(other)} if other else {})}


def pack_weights(weights: np.ndarray, codec: str) -> dict[str, Any]:
    """Encode weights (H, T, S) as `{"codec", "data", "tops"}`; `tops` is the largest weight of each head."""
    tops = weights.max(axis=(1, 2), initial=0.0).astype(np.float32)
    if codec == "f32-deflate":
        codes = weights.astype("<f4")
    else:
        scale = np.where(tops > 0, tops, 1)[:, None, None]
        max_code = MAX_CODES[codec]
        codes = np.rint(max_code * np.sqrt(weights / scale)).astype("<u2" if max_code > 255 else "u1")
    data = b64encode(zlib.compress(codes.tobytes(), 9)).decode("ascii")
    return {"codec": codec, "data": data, "tops": tops.tolist()}


def check_weights(entry: Mapping[str, Any], labels: Mapping[str, list[str]]) -> np.ndarray:
    """Return the weights (H, T, S) of a map as float32; raise if they do not fit its labels."""
    try:
        weights = np.asarray(entry["weights"], dtype=np.float32)
    except (TypeError, ValueError):
        raise SaccadeError(
            f"weights of {entry['address']} must be numbers (heads, rows, columns), got others"
        ) from None
    expected = tuple(len(labels[entry[side]]) for side in SIDES)
    if weights.ndim != 3 or weights.shape[1:] != expected:
        raise SaccadeError(
            f"weights of {entry['address']} must have shape (heads, {expected[0]}, {expected[1]}) as its labels, "
            f"got {weights.shape}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise SaccadeError(
            f"weights of {entry['address']} must be finite and not negative; check the output of the model"
        )
    return weights


def _choose_codec(count: int) -> str:
    if count <= MAX_FLOAT32_WEIGHTS:
        return "f32-deflate"
    return "u16-deflate" if count <= MAX_UINT16_WEIGHTS else "u8-deflate"
