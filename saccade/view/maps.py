"""The attention weights of one layer with named axes and token labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saccade.errors import SaccadeError

AttentionPart = Literal["cross", "writer", "reader"]
# by default, the first one that the model has is shown
PARTS: tuple[AttentionPart, ...] = (
    "cross",
    "writer",
    "reader",
)
PART_NAMES = {
    "cross": "cross-attention",
    "writer": "self-attention of the writer",
    "reader": "self-attention of the reader",
}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap:
    """Attention weights (heads, rows, columns) of one layer; `numpy.asarray` returns the plain array."""

    address: str  # module path of the layer in its model
    part: AttentionPart  # cross: cross-attention; writer, reader: self-attention of the decoder or encoder
    layer: int  # index within its part, from 1
    weights: NDArray[np.float32]
    rows: str  # side of the queries: "target" or "source"
    columns: str  # side of the keys: "source", or "seen", the writer's own input (the output shifted by one)
    labels: Mapping[str, Sequence[str]]  # tokens of each side

    def __post_init__(self) -> None:
        expected = (len(self.labels[self.rows]), len(self.labels[self.columns]))
        if self.weights.ndim != 3 or self.weights.shape[1:] != expected or 0 in self.weights.shape:
            raise SaccadeError(
                f"weights of {self.address} must be (heads, {self.rows}, {self.columns}) = (heads, {expected[0]}, "
                f"{expected[1]}) and not empty, got {self.weights.shape}; give one label for each row and column"
            )

    @property
    def name(self) -> str:
        return f"{PART_NAMES[self.part]}, layer {self.layer}"

    @property
    def axes(self) -> tuple[str, str, str]:
        return ("head", self.rows, self.columns)

    @property
    def heads(self) -> int:
        return len(self.weights)

    def head(self, number: int) -> AttentionMap:
        """Return the map of a single head, counted from 1."""
        if not 1 <= number <= self.heads:
            raise SaccadeError(f"--head must be at most {self.heads}, got {number}")
        return replace(self, weights=self.weights[number - 1 : number])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return np.array(self.weights, dtype=dtype, copy=True if copy else None)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.weights.shape, strict=True))
        return f"<{self.name} at {self.address}: {sizes}>"


def select_map(maps: Sequence[AttentionMap], *, part: str | None = None, layer: int | None = None) -> AttentionMap:
    """Select the map of one layer; by default, the last layer of the first part that the model has."""
    if part is not None and part not in PARTS:
        raise SaccadeError(f"--part must be one of {', '.join(PARTS)}, got '{part}'")
    candidates = filter_by_part(maps, part or next((name for name in PARTS if filter_by_part(maps, name)), "cross"))
    if not candidates:
        has = ", ".join(entry.address for entry in maps) or "none"
        raise SaccadeError(f"this model has no attention of --part {part or 'cross'}; it has {has}")
    if layer is not None and not 1 <= layer <= len(candidates):
        raise SaccadeError(f"--layer must be at most {len(candidates)}, got {layer}")
    return candidates[-1 if layer is None else layer - 1]


def filter_by_part(maps: Sequence[AttentionMap], part: str) -> list[AttentionMap]:
    return [entry for entry in maps if entry.part == part]
