"""How sequences of unequal length lie in a batch: padded to a rectangle, or packed one behind the other into one row.

In a packed row nothing is computed for padding.

R sequences, N tokens in all; a rectangle of the same sequences is (R, longest).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

SHORTEST = 16  # the smallest bound for the length of texts; the next ones are twice as large


class Layout(ABC):
    """What readers, writers and objectives ask of a batch, however its sequences lie."""

    keep: Bool[Tensor, "B T"]  # which tokens are real
    longest: int  # no sequence is longer

    @property
    @abstractmethod
    def places(self) -> Int[Tensor, "1 N"] | None:
        """The position of each token in its sequence; None where it follows from the shape."""

    @property
    @abstractmethod
    def lengths(self) -> Int[Tensor, " R"]:
        """Tokens of each sequence."""

    @property
    @abstractmethod
    def real(self) -> Bool[Tensor, " R"]:
        """Which sequences do not only fill up the batch."""

    @property
    @abstractmethod
    def begins(self) -> Int[Tensor, " R"]:
        """Where each sequence begins among all tokens of the batch, one row after the other."""

    @abstractmethod
    def sum(self, x: Shaped[Tensor, "B T"]) -> Shaped[Tensor, " R"]:
        """The sum over the tokens of each sequence."""

    @abstractmethod
    def spread(self, x: Shaped[Tensor, " R"]) -> Shaped[Tensor, "B T"]:
        """What belongs to a sequence, at each of its tokens."""

    @abstractmethod
    def rectangle(self, x: Shaped[Tensor, "B T *d"]) -> Shaped[Tensor, "R L *d"]:
        """The tokens of each sequence in a row of its own; behind its end stands anything."""

    @abstractmethod
    def inside(self) -> Bool[Tensor, "R L"]:
        """Which places of the rectangle hold a token."""

    @abstractmethod
    def pack(self, x: Shaped[Tensor, "R L *d"]) -> Shaped[Tensor, "B T *d"]:
        """The way back from the rectangle."""

    @abstractmethod
    def double(self, x: Shaped[Tensor, "B T *d"]) -> Shaped[Tensor, "C U *d"]:
        """All sequences, and all of them once more behind them."""

    @abstractmethod
    def doubled(self) -> Tensor | Packing:
        """The mask of what `double` gives."""

    @abstractmethod
    def first_half(self, x: Shaped[Tensor, "C U *d"]) -> Shaped[Tensor, "B T *d"]:
        """What `double` was given, if this is the layout of what it gave."""

    @abstractmethod
    def tensors(self) -> list[Tensor]: ...

    @abstractmethod
    def clone(self) -> Tensor | Packing:
        """The same mask in memory of its own."""


@dataclass(frozen=True)
class PaddedRows(Layout):
    """A rectangle of sequences, each in a row of its own, with padding behind it."""

    keep: Bool[Tensor, "B T"]

    @property
    def longest(self) -> int:  # type: ignore[override]
        return self.keep.shape[1]

    @property
    def places(self) -> None:
        return None

    @property
    def lengths(self) -> Int[Tensor, " R"]:
        return self.keep.sum(1)

    @property
    def real(self) -> Bool[Tensor, " R"]:
        return self.keep.any(1)

    @property
    def begins(self) -> Int[Tensor, " R"]:
        return torch.arange(len(self.keep), device=self.keep.device) * self.keep.shape[1]

    def sum(self, x: Tensor) -> Tensor:
        return x.sum(1)

    def spread(self, x: Tensor) -> Tensor:
        return x[:, None].expand(-1, self.keep.shape[1])

    def rectangle(self, x: Tensor) -> Tensor:
        return x

    def inside(self) -> Tensor:
        return self.keep

    def pack(self, x: Tensor) -> Tensor:
        return x

    def double(self, x: Tensor) -> Tensor:
        return torch.cat((x, x))

    def doubled(self) -> Tensor:
        return self.double(self.keep)

    def first_half(self, x: Tensor) -> Tensor:
        return x[: len(x) // 2]

    def tensors(self) -> list[Tensor]:
        return [self.keep]

    def clone(self) -> Tensor:
        return self.keep.clone()


def layout_of(mask: Bool[Tensor, "B T"] | Packing) -> Layout:
    """The layout of a batch, given what stands for a padding mask."""
    return mask if isinstance(mask, Layout) else PaddedRows(mask)


def split_mask(mask: Bool[Tensor, "B T"] | Packing | None) -> tuple[Packing | None, Bool[Tensor, "B T"] | None]:
    """The packing or the padding mask; at most one of them."""
    return (mask, None) if isinstance(mask, Packing) else (None, mask)


@dataclass(frozen=True)
class Packing(Layout):
    """Where the texts of a packed row begin and end.

    Text i is offsets[i] : offsets[i + 1]. A row may be filled up to a round number of tokens with texts that are not
    real, and with empty texts up to a round number of texts: so that few shapes occur.
    """

    offsets: Int[Tensor, " R1"]  # int32
    texts: Int[Tensor, "1 N"]  # the number of each token's text
    positions: Int[Tensor, "1 N"]  # its place in that text
    keep: Bool[Tensor, "1 N"]  # whether the text is real
    longest: int  # no text is longer

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Packing:
        return self.each(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Packing:
        return self.each(Tensor.pin_memory)

    def each(self, change: Callable[[Tensor], Tensor]) -> Packing:
        """The same with every tensor changed."""
        offsets, texts, positions, keep = map(change, self.tensors())
        return Packing(offsets, texts, positions, keep, self.longest)

    def tensors(self) -> list[Tensor]:
        return [self.offsets, self.texts, self.positions, self.keep]

    def clone(self) -> Packing:
        return self.each(Tensor.clone)

    @property
    def places(self) -> Int[Tensor, "1 N"]:
        return self.positions

    @property
    def lengths(self) -> Int[Tensor, " R"]:
        return self.offsets.diff().long()

    @property
    def real(self) -> Bool[Tensor, " R"]:
        count = ((self.texts + 1) * self.keep).amax()
        return torch.arange(len(self.offsets) - 1, device=self.texts.device) < count

    @property
    def begins(self) -> Int[Tensor, " R"]:
        """An empty sequence begins at the last token: behind it there is nothing."""
        return self.offsets[:-1].long().clamp(max=self.texts.shape[1] - 1)

    def sum(self, x: Shaped[Tensor, "1 N"]) -> Shaped[Tensor, " R"]:
        kind = torch.long if x.dtype == torch.bool else x.dtype
        zeros = torch.zeros(len(self.offsets) - 1, dtype=kind, device=x.device)
        return zeros.index_add(0, self.texts[0], x[0].to(kind))

    def spread(self, x: Shaped[Tensor, " R"]) -> Shaped[Tensor, "1 N"]:
        return x[self.texts]

    def rectangle(self, x: Shaped[Tensor, "1 N *d"]) -> Shaped[Tensor, "R L *d"]:
        return self.unpack(x.reshape(*x.shape[:2], 1, -1)).reshape(len(self.offsets) - 1, self.longest, *x.shape[2:])

    def double(self, x: Shaped[Tensor, "1 N *d"]) -> Shaped[Tensor, "1 M *d"]:
        return torch.cat((x, x), 1)

    def first_half(self, x: Shaped[Tensor, "1 M *d"]) -> Shaped[Tensor, "1 N *d"]:
        return x[:, : x.shape[1] // 2]

    def doubled(self) -> Packing:
        """All texts, and all of them once more behind them."""
        count, tokens = self.offsets.shape[0] - 1, self.texts.shape[1]
        return Packing(
            torch.cat((self.offsets[:-1], self.offsets + tokens)),
            torch.cat((self.texts, self.texts + count), 1),
            torch.cat((self.positions, self.positions), 1),
            torch.cat((self.keep, self.keep), 1),
            self.longest,
        )

    def inside(self) -> Bool[Tensor, "R L"]:
        """Which places of the rectangle hold a token."""
        return torch.arange(self.longest, device=self.offsets.device) < self.offsets.diff()[:, None]

    def unpack(self, x: Shaped[Tensor, "1 N H E"]) -> Shaped[Tensor, "R L H E"]:
        """The rectangle; behind the end of a text stands some other token."""
        places = self.offsets[:-1, None] + torch.arange(self.longest, device=x.device)
        chosen = places.clamp(max=x.shape[1] - 1).flatten()
        return x[0].index_select(0, chosen).unflatten(0, places.shape)

    def pack(self, x: Shaped[Tensor, "R L *d"]) -> Shaped[Tensor, "1 N *d"]:
        """The row of a rectangle."""
        places = self.texts[0] * self.longest + self.positions[0]
        return x.flatten(0, 1).index_select(0, places)[None]


def packing(
    lengths: Sequence[int] | Int[Tensor, " R"], *, tokens: int | None = None, texts: int | None = None
) -> Packing:
    """The packing of texts of these lengths, filled up to so many tokens and texts where that is given."""
    real = torch.as_tensor(lengths, dtype=torch.int64)
    longest = int(real.max())
    longest = longest if tokens is None else bound(longest)  # round only where few shapes are wanted
    missing = 0 if tokens is None else tokens - int(real.sum())
    extra = [longest] * (missing // longest) + [missing % longest] * (missing % longest > 0)
    all_lengths = torch.cat((real, torch.tensor(extra, dtype=torch.int64)))
    ends = all_lengths.cumsum(0)
    empty = 0 if texts is None else texts - len(all_lengths)
    begins = torch.cat((torch.zeros(1, dtype=torch.int64), ends, ends[-1:].expand(empty)))
    numbers = torch.arange(len(all_lengths)).repeat_interleave(all_lengths)
    positions = torch.arange(len(numbers)) - begins[numbers]
    return Packing(begins.int(), numbers[None], positions[None], (numbers < len(real))[None], longest)


def bound(length: int) -> int:
    """The smallest of 16, 32, 64, 128, 256, 384, 512 ... that is not less: so few that a graph for each is possible."""
    size = SHORTEST
    while size < length and size < 128:
        size *= 2
    return size if length <= size else -(-length // 128) * 128
