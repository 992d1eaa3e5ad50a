"""Texts of unequal length packed one behind the other into one row, so that nothing is computed for padding.

R texts, N tokens in all; a rectangle of the same texts is (R, longest).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

SHORTEST = 16  # the smallest bound for the length of texts; the next ones are twice as large


@dataclass(frozen=True)
class Packing:
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

    def pack(self, x: Float[Tensor, "R L D"]) -> Float[Tensor, "1 N D"]:
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
