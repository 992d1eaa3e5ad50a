"""One attention layer as an array with names: what its axes are, and what stands along them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saccade.errors import SaccadeError

Part = Literal["cross", "writer", "reader"]
PARTS: tuple[Part, ...] = ("cross", "writer", "reader")  # that which is shown where none is chosen stands first
NAMES = {"cross": "cross-attention", "writer": "self-attention of the writer", "reader": "self-attention of the reader"}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap:
    """Weights (head, row, column) of one layer; `numpy.asarray` gives them alone."""

    address: str  # of the layer in its model
    part: Part  # cross: from what is written to what was read; writer, reader: to itself
    layer: int  # of its part, counted from 1
    weights: NDArray[np.float32]
    rows: str  # what looks: "target" or "source"
    columns: str  # what is looked at: "source", or "seen", which is what a writer has before it at each place
    labels: Mapping[str, Sequence[str]]  # of rows and columns, by these names

    def __post_init__(self) -> None:
        wanted = (len(self.labels[self.rows]), len(self.labels[self.columns]))
        if self.weights.ndim != 3 or self.weights.shape[1:] != wanted or 0 in self.weights.shape:
            raise SaccadeError(
                f"weights of {self.address} must be (heads, {self.rows}, {self.columns}) = (heads, {wanted[0]}, "
                f"{wanted[1]}) and not empty, got {self.weights.shape}; give one label for each row and column"
            )

    @property
    def name(self) -> str:
        return f"{NAMES[self.part]}, layer {self.layer}"

    @property
    def axes(self) -> tuple[str, str, str]:
        return ("head", self.rows, self.columns)

    @property
    def heads(self) -> int:
        return len(self.weights)

    def head(self, number: int) -> AttentionMap:
        """One head alone, counted from 1."""
        if not 1 <= number <= self.heads:
            raise SaccadeError(f"--head must be at most {self.heads}, got {number}")
        return replace(self, weights=self.weights[number - 1 : number])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return np.array(self.weights, dtype=dtype, copy=True if copy else None)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.weights.shape, strict=True))
        return f"<{self.name} at {self.address}: {sizes}>"


def chosen(maps: Sequence[AttentionMap], *, part: str | None = None, layer: int | None = None) -> AttentionMap:
    """The map of one layer: without a part of the first that there is, without a layer of the last."""
    if part is not None and part not in PARTS:
        raise SaccadeError(f"--part must be one of {', '.join(PARTS)}, got '{part}'")
    found = of_part(maps, part or next((name for name in PARTS if of_part(maps, name)), "cross"))
    if not found:
        has = ", ".join(entry.address for entry in maps) or "none"
        raise SaccadeError(f"this model has no attention of --part {part or 'cross'}; it has {has}")
    if layer is not None and not 1 <= layer <= len(found):
        raise SaccadeError(f"--layer must be at most {len(found)}, got {layer}")
    return found[-1 if layer is None else layer - 1]


def of_part(maps: Sequence[AttentionMap], part: str) -> list[AttentionMap]:
    return [entry for entry in maps if entry.part == part]
