"""Attention masks as objects: causal, padding, window, prefix, document and segment masks, combined with `&` and `|`.

A mask describes its structure instead of holding a Q x K matrix: kernels use the structure (`is_causal`, `to_band`)
and build the matrix only where they must. Positions are absolute, so that a causal mask also fits decoding, where a few
queries meet many cached keys.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Band(NamedTuple):
    """A mask that is a diagonal band: keys at most `radius` away, none after the query if causal, and not padding."""

    radius: int | None = None
    causal: bool = False
    keep: Bool[Tensor, "B K"] | None = None


class Mask(ABC):
    is_causal = False  # the causal mask alone, not combined with another

    @abstractmethod
    def to_dense(self, q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]) -> Bool[Tensor, "d ..."]:
        """The matrix (B or 1, Q or 1, K) for queries and keys at these absolute positions; True = may be attended."""

    def hides_future(self) -> bool:
        """Whether no query may attend to a later key."""
        return self.is_causal

    def to_band(self) -> Band | None:
        """The mask as a band; None where it is not one."""
        return None

    def get_segment_differences(self) -> "list[Bool[Tensor, 'B Q K']]":
        """Whether query and key belong to different segments, for score terms; empty without a segment mask."""
        return []

    def __and__(self, other: "Mask") -> "Mask":
        return _Intersection(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _Union(self, other)


@dataclass(frozen=True)
class Padding(Mask):
    """Hides padding; `keep` is True for real keys."""

    keep: Bool[Tensor, "B K"]

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.keep[:, None, :]

    def to_band(self) -> Band:
        return Band(keep=self.keep)


@dataclass(frozen=True)
class Causal(Mask):
    """Hides keys after the query (Vaswani et al. 2017, section 3.2.3)."""

    is_causal = True

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos[:, None, :] <= q_pos[:, :, None]

    def to_band(self) -> Band:
        return Band(causal=True)


@dataclass(frozen=True)
class Others(Mask):
    """Hides the query's own position (Gu et al. 2018, section 3.2); a query that is alone attends to nothing."""

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos[:, None, :] != q_pos[:, :, None]


@dataclass(frozen=True)
class Window(Mask):
    """At most `radius` keys on each side of the query (restricted self-attention, Vaswani et al. 2017, section 4)."""

    radius: int

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (k_pos[:, None, :] - q_pos[:, :, None]).abs() <= self.radius

    def to_band(self) -> Band:
        return Band(radius=self.radius)


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query sees the first `length` keys of its row; `prefix(length) | causal()` is that of a prefix LM."""

    length: Int[Tensor, " B"]

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos[:, None, :] < self.length[:, None, None]


@dataclass(frozen=True)
class Documents(Mask):
    """Only keys of the query's own document, where a row holds several documents."""

    queries: Int[Tensor, "B Q"]
    keys: Int[Tensor, "B K"]

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.queries[:, :, None] == self.keys[:, None, :]


@dataclass(frozen=True)
class Segments(Mask):
    """Hides nothing, but provides score terms with the segments of queries and keys."""

    queries: Int[Tensor, "B Q"]
    keys: Int[Tensor, "B K"]

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return torch.ones(1, 1, 1, dtype=torch.bool, device=self.keys.device)

    def get_segment_differences(self) -> list[Bool[Tensor, "B Q K"]]:
        return [self.queries[:, :, None] != self.keys[:, None, :]]


@dataclass(frozen=True)
class Dense(Mask):
    """A mask given as a matrix."""

    allowed: Bool[Tensor, "b Q K"]

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.allowed


@dataclass(frozen=True)
class _Intersection(Mask):
    first: Mask
    second: Mask

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.first.to_dense(q_pos, k_pos) & self.second.to_dense(q_pos, k_pos)

    def hides_future(self) -> bool:
        return self.first.hides_future() or self.second.hides_future()

    def to_band(self) -> Band | None:
        """The intersection of two bands."""
        one, other = self.first.to_band(), self.second.to_band()
        if one is None or other is None:
            return None
        radii = [band.radius for band in (one, other) if band.radius is not None]
        keeps = [band.keep for band in (one, other) if band.keep is not None]
        return Band(
            radius=min(radii) if radii else None,
            causal=one.causal or other.causal,
            keep=reduce(and_, keeps) if keeps else None,
        )

    def get_segment_differences(self) -> list[Bool[Tensor, "B Q K"]]:
        return self.first.get_segment_differences() + self.second.get_segment_differences()


@dataclass(frozen=True)
class _Union(Mask):
    first: Mask
    second: Mask

    def to_dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.first.to_dense(q_pos, k_pos) | self.second.to_dense(q_pos, k_pos)


def padding(keep: Bool[Tensor, "B K"]) -> Padding:
    return Padding(keep)


def causal() -> Causal:
    return Causal()


def others() -> Others:
    return Others()


def window(radius: int) -> Window:
    return Window(radius)


def causal_window(width: int) -> Mask:
    """The query itself and the `width` keys before it, as in the locally banded layers of GPT-3."""
    return Causal() & Window(width)


def prefix(length: Int[Tensor, " B"]) -> Prefix:
    return Prefix(length)


def documents(queries: Int[Tensor, "B Q"], keys: Int[Tensor, "B K"]) -> Documents:
    return Documents(queries, keys)


def segments(queries: Int[Tensor, "B Q"], keys: Int[Tensor, "B K"]) -> Segments:
    return Segments(queries, keys)


def dense(allowed: Bool[Tensor, "b Q K"]) -> Dense:
    return Dense(allowed)


def make_positions(length: int, device: torch.device) -> Int[Tensor, "1 length"]:
    """Positions 0, 1, 2 ... as a tensor (1, length)."""
    return torch.arange(length, device=device)[None, :]
