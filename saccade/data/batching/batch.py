"""The batches that models are given: named fields of token ids, pictures or audio frames.

Shapes: B batch, T length, F features. `mask` is boolean and True at real tokens or frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

PAD_ID = 0  # fills up shorter rows; the mask decides which positions are padding, not this id


class Field(Protocol):
    """A field of a batch; a plugin may have others than tokens, pictures and frames."""

    @property
    def content(self) -> Tensor: ...
    @property
    def mask(self) -> Any: ...
    @property
    def num_positions(self) -> int: ...
    @property
    def shared_tensors(self) -> tuple[Tensor, ...]: ...
    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self: ...
    def pin_memory(self) -> Self: ...
    def select_rows(self, rows: slice) -> Self: ...


@dataclass(frozen=True)
class Tokens:
    """Token ids of B sequences, padded to one length; or packed into one row without padding."""

    ids: Tensor  # (B, T) int64
    mask: Any  # (B, T) bool; for a packed row, the layout of its sequences
    shared_tensors: ClassVar[tuple[Tensor, ...]] = ()  # tensors without a batch dimension

    @property
    def content(self) -> Tensor:
        """The tensor that the reader is called with."""
        return self.ids

    @property
    def num_positions(self) -> int:
        """Number of positions, padding included."""
        return self.ids.numel()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Tokens:
        return Tokens(self.ids.to(device, non_blocking=non_blocking), self.mask.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Tokens:
        return Tokens(self.ids.pin_memory(), self.mask.pin_memory())

    def select_rows(self, rows: slice) -> Tokens:
        """Select rows of a padded field, without the last columns if they are padding in all of them."""
        width = max(1, int((self.mask[rows].any(0) * torch.arange(1, self.mask.shape[1] + 1)).max()))
        return Tokens(self.ids[rows, :width], self.mask[rows, :width])


@dataclass(frozen=True)
class Media:
    """A field of continuous values in place of token ids; base of Pictures and Frames."""

    values: Tensor
    mask: Tensor
    shared_tensors: ClassVar[tuple[Tensor, ...]] = ()

    @property
    def content(self) -> Tensor:
        return self.values

    @property
    def num_positions(self) -> int:
        return self.mask.numel()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        moved = (x.to(device, non_blocking=non_blocking) for x in (self.values, self.mask))
        return type(self)(*moved)

    def pin_memory(self) -> Self:
        return type(self)(self.values.pin_memory(), self.mask.pin_memory())

    def select_rows(self, rows: slice) -> Self:
        return type(self)(self.values[rows], self.mask[rows])


class Pictures(Media):
    """Pictures of one size: values (B, 3, H, W), uint8, or float from 0 to 255.

    mask (B, S) is all True; S is the number of states that the reader computes for a picture.
    """


class Frames(Media):
    """Audio features, padded to one length: values (B, T, F) float, mask (B, T)."""


@dataclass(frozen=True)
class Batch:
    """Named fields with the same number of rows, and the number of real (not padded) tokens of each."""

    fields: Mapping[str, Any]  # Tokens, Pictures, Frames or another `Field`
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Counted while the masks are on the CPU, to avoid a synchronization with the GPU later.
        missing = {name: int(tokens.mask.sum()) for name, tokens in self.fields.items() if name not in self.counts}
        object.__setattr__(self, "counts", {**self.counts, **missing})

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        moved = {name: tokens.to(device, non_blocking=non_blocking) for name, tokens in self.fields.items()}
        return Batch(moved, self.counts)

    def pin_memory(self) -> Batch:
        return Batch({name: tokens.pin_memory() for name, tokens in self.fields.items()}, self.counts)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of a padded batch; None if its fields have different ones, as in some tasks of plugins."""
        rows = {len(field.mask) for field in self.fields.values()}
        return rows.pop() if len(rows) == 1 else None

    def split(self, parts: int) -> list[Batch]:
        """Split a padded batch by rows into `parts` batches of nearly equal size, or one of each row if it has fewer.

        A batch whose fields have different numbers of rows stays whole.
        """
        rows = self.num_rows or 1
        parts = min(parts, rows)
        if parts == 1:
            return [self]
        bounds = [rows * part // parts for part in range(parts + 1)]
        return [
            Batch({name: field.select_rows(slice(first, last)) for name, field in self.fields.items()})
            for first, last in itertools.pairwise(bounds)
        ]


def pad(rows: Sequence[Sequence[int] | np.ndarray]) -> Tokens:
    """Pad rows of ids to the length of the longest."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    flat = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]) if len(rows) else np.zeros(0, np.int64)
    return pad_flat(flat, lengths)


def pad_flat(flat: np.ndarray, lengths: np.ndarray) -> Tokens:
    """Pad rows of ids, given concatenated in one array with their lengths, to the length of the longest."""
    width = int(lengths.max()) if len(lengths) else 0
    mask = np.arange(width) < lengths[:, None]
    ids = np.full(mask.shape, PAD_ID, dtype=np.int64)
    ids[mask] = flat
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))
