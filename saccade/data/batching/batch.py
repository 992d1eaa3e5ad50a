"""What a model is given: token ids, pictures, frames of sound or where to walk, under the names of the fields.

B batch, T length, F features. mask is boolean, True = a real token or frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

PAD_ID = 0  # what stands behind the end of shorter rows; the mask, not this id, says what is real


@dataclass(frozen=True)
class Tokens:
    """Rows of token ids of unequal length, padded to a rectangle; or packed into one row, without padding."""

    ids: Tensor  # (B, T) int64
    mask: Any  # (B, T) bool; for a packed row, where its texts are
    shared: ClassVar[tuple[Tensor, ...]] = ()  # tensors that belong to no row

    @property
    def content(self) -> Tensor:
        """What a reader is given."""
        return self.ids

    @property
    def places(self) -> int:
        """How many there are, padding counted."""
        return self.ids.numel()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Tokens:
        return Tokens(self.ids.to(device, non_blocking=non_blocking), self.mask.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Tokens:
        return Tokens(self.ids.pin_memory(), self.mask.pin_memory())


@dataclass(frozen=True)
class Media:
    """Rows of numbers that are no tokens; see what is made of it."""

    values: Tensor
    mask: Tensor
    shared: ClassVar[tuple[Tensor, ...]] = ()

    @property
    def content(self) -> Tensor:
        return self.values

    @property
    def places(self) -> int:
        return self.mask.numel()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        moved = (x.to(device, non_blocking=non_blocking) for x in (self.values, self.mask))
        return type(self)(*moved)

    def pin_memory(self) -> Self:
        return type(self)(self.values.pin_memory(), self.mask.pin_memory())


class Pictures(Media):
    """Pictures of one size: values (B, 3, H, W), uint8, or float from 0 to 255.

    mask (B, S) is all True, S the states that a reader makes of a picture.
    """


class Frames(Media):
    """Sound as rows of features, padded to a rectangle: values (B, T, F) float; mask (B, T)."""


@dataclass(frozen=True)
class Ground:
    """Where one walks: N poses, what is seen from each, and the pose to which each token of a vocabulary leads."""

    start: Tensor  # (B, 1) int64, the pose at which each row begins
    mask: Tensor  # (B, 1) bool, all True
    moves: Tensor  # (N, V) int64
    sights: Tensor  # (N, F) float

    @property
    def content(self) -> Tensor:
        return self.start

    @property
    def places(self) -> int:
        return self.start.numel()

    @property
    def shared(self) -> tuple[Tensor, ...]:
        return self.moves, self.sights

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.start, self.mask, *self.shared

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Ground:
        return Ground(*(x.to(device, non_blocking=non_blocking) for x in self.tensors))

    def pin_memory(self) -> Ground:
        return Ground(*(x.pin_memory() for x in self.tensors))


@dataclass(frozen=True)
class Batch:
    """Named fields of the same number of rows, and how many real tokens each has."""

    fields: Mapping[str, Any]  # of Tokens, Pictures, Frames or Ground
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Counted here, once, so that nobody has to ask the GPU later.
        missing = {name: int(tokens.mask.sum()) for name, tokens in self.fields.items() if name not in self.counts}
        object.__setattr__(self, "counts", {**self.counts, **missing})

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        moved = {name: tokens.to(device, non_blocking=non_blocking) for name, tokens in self.fields.items()}
        return Batch(moved, self.counts)

    def pin_memory(self) -> Batch:
        return Batch({name: tokens.pin_memory() for name, tokens in self.fields.items()}, self.counts)


def pad(rows: Sequence[Sequence[int] | np.ndarray]) -> Tokens:
    """Rows of ids as one rectangle as wide as the longest row."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    flat = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]) if len(rows) else np.zeros(0, np.int64)
    return rectangle(flat, lengths)


def rectangle(flat: np.ndarray, lengths: np.ndarray) -> Tokens:
    """Ids one row after the other, as one rectangle as wide as the longest row."""
    width = int(lengths.max()) if len(lengths) else 0
    mask = np.arange(width) < lengths[:, None]
    ids = np.full(mask.shape, PAD_ID, dtype=np.int64)
    ids[mask] = flat
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))
