"""Which query may attend to which key, as structure.

A mask is an object, not a T x S matrix: kernels ask it for its structure and build the matrix only where they must.
Positions are absolute, so a causal mask is right for any number of queries against any number of keys.
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
    """A diagonal band of the matrix: keys at most `reach` away, none after the query, only those to `keep`."""

    reach: int | None = None
    causal: bool = False
    keep: Bool[Tensor, "B K"] | None = None


class Mask(ABC):
    is_causal = False  # it is the causal mask and nothing else

    @abstractmethod
    def dense(self, q_pos: Int[Tensor, "b Q"], k_pos: Int[Tensor, "c K"]) -> Bool[Tensor, "d ..."]:
        """The matrix (B or 1, Q or 1, K) for queries and keys at these absolute positions; True = may be attended."""

    def looks_back(self) -> bool:
        """Whether no query sees a key after it."""
        return self.is_causal

    def band(self) -> Band | None:
        """The mask as a band; None where it is none."""
        return None

    def segment_changes(self) -> "list[Bool[Tensor, 'B Q K']]":
        """Whether query and key belong to two segments, for score terms; empty where the mask knows no segments."""
        return []

    def __and__(self, other: "Mask") -> "Mask":
        return _Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _Either(self, other)


@dataclass(frozen=True)
class Padding(Mask):
    """Only keys that are real."""

    keep: Bool[Tensor, "B K"]

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.keep[:, None, :]

    def band(self) -> Band:
        return Band(keep=self.keep)


@dataclass(frozen=True)
class Causal(Mask):
    """No key after the query: no look-ahead."""

    is_causal = True

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos[:, None, :] <= q_pos[:, :, None]

    def band(self) -> Band:
        return Band(causal=True)


@dataclass(frozen=True)
class Window(Mask):
    """At most `reach` keys on each side of the query (restricted self-attention, Vaswani et al. 2017, section 4)."""

    reach: int

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (k_pos[:, None, :] - q_pos[:, :, None]).abs() <= self.reach

    def band(self) -> Band:
        return Band(reach=self.reach)


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query sees the first `length` keys of its row; combine with `| causal()` for a prefix language model."""

    length: Int[Tensor, " B"]

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos[:, None, :] < self.length[:, None, None]


@dataclass(frozen=True)
class Documents(Mask):
    """Only keys of the query's own document, for several texts packed into one row."""

    queries: Int[Tensor, "B Q"]
    keys: Int[Tensor, "B K"]

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.queries[:, :, None] == self.keys[:, None, :]


@dataclass(frozen=True)
class Segments(Mask):
    """Every key may be seen, but a score term may ask which of them belong to the query's own segment."""

    queries: Int[Tensor, "B Q"]
    keys: Int[Tensor, "B K"]

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return torch.ones(1, 1, 1, dtype=torch.bool, device=self.keys.device)

    def segment_changes(self) -> list[Bool[Tensor, "B Q K"]]:
        return [self.queries[:, :, None] != self.keys[:, None, :]]


@dataclass(frozen=True)
class Dense(Mask):
    """Any matrix."""

    allowed: Bool[Tensor, "b Q K"]

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.allowed


@dataclass(frozen=True)
class _Both(Mask):
    first: Mask
    second: Mask

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.first.dense(q_pos, k_pos) & self.second.dense(q_pos, k_pos)

    def looks_back(self) -> bool:
        return self.first.looks_back() or self.second.looks_back()

    def band(self) -> Band | None:
        """The intersection of two bands."""
        one, other = self.first.band(), self.second.band()
        if one is None or other is None:
            return None
        reaches = [band.reach for band in (one, other) if band.reach is not None]
        keeps = [band.keep for band in (one, other) if band.keep is not None]
        return Band(
            reach=min(reaches) if reaches else None,
            causal=one.causal or other.causal,
            keep=reduce(and_, keeps) if keeps else None,
        )

    def segment_changes(self) -> list[Bool[Tensor, "B Q K"]]:
        return self.first.segment_changes() + self.second.segment_changes()


@dataclass(frozen=True)
class _Either(Mask):
    first: Mask
    second: Mask

    def dense(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.first.dense(q_pos, k_pos) | self.second.dense(q_pos, k_pos)


def padding(keep: Bool[Tensor, "B K"]) -> Padding:
    return Padding(keep)


def causal() -> Causal:
    return Causal()


def window(reach: int) -> Window:
    return Window(reach)


def banded(width: int) -> Mask:
    """The query itself and the `width` keys before it (locally banded attention of GPT-3)."""
    return Causal() & Window(width)


def prefix(length: Int[Tensor, " B"]) -> Prefix:
    return Prefix(length)


def documents(queries: Int[Tensor, "B Q"], keys: Int[Tensor, "B K"]) -> Documents:
    return Documents(queries, keys)


def segments(queries: Int[Tensor, "B Q"], keys: Int[Tensor, "B K"]) -> Segments:
    return Segments(queries, keys)


def dense(allowed: Bool[Tensor, "b Q K"]) -> Dense:
    return Dense(allowed)


def positions(length: int, device: torch.device) -> Int[Tensor, "1 length"]:
    """0, 1, 2 ... as a row, the positions of a text read from its beginning."""
    return torch.arange(length, device=device)[None, :]
