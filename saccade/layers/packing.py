"""Layouts of a batch of sequences of unequal length: padded, or packed (concatenated) into a single row.

In a packed row nothing is computed for padding. In shapes: R sequences, N tokens in total, and L the length of the
padded form (R, L).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

MIN_LENGTH_BUCKET = 16  # the smallest value of `round_up_length`


class Layout(ABC):
    """The interface of a padded or packed batch for readers, writers and objectives."""

    keep: Bool[Tensor, "B T"]  # False for padding
    max_length: int  # an upper bound of the lengths

    @property
    @abstractmethod
    def token_positions(self) -> Int[Tensor, "1 N"] | None:
        """The position of each token in its sequence; None for 0, 1, 2 ... in every row."""

    @property
    @abstractmethod
    def lengths(self) -> Int[Tensor, " R"]:
        """Tokens of each sequence."""

    @property
    @abstractmethod
    def real_sequences(self) -> Bool[Tensor, " R"]:
        """False for sequences that only fill up the batch."""

    @property
    @abstractmethod
    def starts(self) -> Int[Tensor, " R"]:
        """The index of each sequence's first token among all tokens of the batch, row by row."""

    @abstractmethod
    def sum_per_sequence(self, x: Shaped[Tensor, "B T"]) -> Shaped[Tensor, " R"]:
        """The sum over the tokens of each sequence."""

    @abstractmethod
    def broadcast_to_tokens(self, x: Shaped[Tensor, " R"]) -> Shaped[Tensor, "B T"]:
        """Copy the value of each sequence to all of its tokens."""

    @abstractmethod
    def to_padded(self, x: Shaped[Tensor, "B T *d"]) -> Shaped[Tensor, "R L *d"]:
        """The padded form, one row per sequence; values after the end of a sequence are arbitrary."""

    @abstractmethod
    def get_padded_mask(self) -> Bool[Tensor, "R L"]:
        """The mask of the padded form: True for tokens."""

    @abstractmethod
    def pack(self, x: Shaped[Tensor, "R L *d"]) -> Shaped[Tensor, "B T *d"]:
        """The inverse of `to_padded`."""

    @abstractmethod
    def repeat_batch(self, x: Shaped[Tensor, "B T *d"]) -> Shaped[Tensor, "C U *d"]:
        """The batch concatenated with itself."""

    @abstractmethod
    def repeat_mask(self) -> Tensor | Packing:
        """The mask or packing of `repeat_batch`."""

    @abstractmethod
    def take_first_half(self, x: Shaped[Tensor, "C U *d"]) -> Shaped[Tensor, "B T *d"]:
        """The inverse of `repeat_batch`, called on the layout of its result."""

    @abstractmethod
    def get_tensors(self) -> list[Tensor]: ...

    @abstractmethod
    def clone(self) -> Tensor | Packing:
        """A copy of the mask or packing."""


@dataclass(frozen=True)
class PaddedRows(Layout):
    """A padded batch: one sequence per row, with padding at the end."""

    keep: Bool[Tensor, "B T"]

    @property
    def max_length(self) -> int:  # type: ignore[override]
        return self.keep.shape[1]

    @property
    def token_positions(self) -> None:
        return None

    @property
    def lengths(self) -> Int[Tensor, " R"]:
        return self.keep.sum(1)

    @property
    def real_sequences(self) -> Bool[Tensor, " R"]:
        return self.keep.any(1)

    @property
    def starts(self) -> Int[Tensor, " R"]:
        return torch.arange(len(self.keep), device=self.keep.device) * self.keep.shape[1]

    def sum_per_sequence(self, x: Tensor) -> Tensor:
        return x.sum(1)

    def broadcast_to_tokens(self, x: Tensor) -> Tensor:
        return x[:, None].expand(-1, self.keep.shape[1])

    def to_padded(self, x: Tensor) -> Tensor:
        return x

    def get_padded_mask(self) -> Tensor:
        return self.keep

    def pack(self, x: Tensor) -> Tensor:
        return x

    def repeat_batch(self, x: Tensor) -> Tensor:
        return torch.cat((x, x))

    def repeat_mask(self) -> Tensor:
        return self.repeat_batch(self.keep)

    def take_first_half(self, x: Tensor) -> Tensor:
        return x[: len(x) // 2]

    def get_tensors(self) -> list[Tensor]:
        return [self.keep]

    def clone(self) -> Tensor:
        return self.keep.clone()


def get_batch_layout(mask: Bool[Tensor, "B T"] | Packing) -> Layout:
    """The layout of a batch, given its padding mask or packing."""
    return mask if isinstance(mask, Layout) else PaddedRows(mask)


def split_mask(mask: Bool[Tensor, "B T"] | Packing | None) -> tuple[Packing | None, Bool[Tensor, "B T"] | None]:
    """(packing, None) or (None, padding mask)."""
    return (mask, None) if isinstance(mask, Packing) else (None, mask)


@dataclass(frozen=True)
class Packing(Layout):
    """Sequences packed into one row; sequence i has the tokens offsets[i] : offsets[i + 1].

    To limit the number of different shapes, the row may be filled with padding sequences up to a round number of
    tokens, and with empty sequences up to a round number of sequences.
    """

    offsets: Int[Tensor, " R1"]  # int32
    sequence_ids: Int[Tensor, "1 N"]  # the index of each token's sequence
    positions: Int[Tensor, "1 N"]  # the position of each token in its sequence
    keep: Bool[Tensor, "1 N"]  # False for padding sequences
    max_length: int  # an upper bound of the lengths

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Packing:
        return self.map_tensors(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Packing:
        return self.map_tensors(Tensor.pin_memory)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Packing:
        """Apply a function to every tensor."""
        offsets, sequence_ids, positions, keep = map(function, self.get_tensors())
        return Packing(offsets, sequence_ids, positions, keep, self.max_length)

    def get_tensors(self) -> list[Tensor]:
        return [self.offsets, self.sequence_ids, self.positions, self.keep]

    def clone(self) -> Packing:
        return self.map_tensors(Tensor.clone)

    @property
    def token_positions(self) -> Int[Tensor, "1 N"]:
        return self.positions

    @property
    def lengths(self) -> Int[Tensor, " R"]:
        return self.offsets.diff().long()

    @property
    def real_sequences(self) -> Bool[Tensor, " R"]:
        count = ((self.sequence_ids + 1) * self.keep).amax()
        return torch.arange(len(self.offsets) - 1, device=self.sequence_ids.device) < count

    @property
    def starts(self) -> Int[Tensor, " R"]:
        """As in the base class; for empty sequences at the end, the index of the last token."""
        return self.offsets[:-1].long().clamp(max=self.sequence_ids.shape[1] - 1)

    def sum_per_sequence(self, x: Shaped[Tensor, "1 N"]) -> Shaped[Tensor, " R"]:
        kind = torch.long if x.dtype == torch.bool else x.dtype
        zeros = torch.zeros(len(self.offsets) - 1, dtype=kind, device=x.device)
        return zeros.index_add(0, self.sequence_ids[0], x[0].to(kind))

    def broadcast_to_tokens(self, x: Shaped[Tensor, " R"]) -> Shaped[Tensor, "1 N"]:
        return x[self.sequence_ids]

    def to_padded(self, x: Shaped[Tensor, "1 N *d"]) -> Shaped[Tensor, "R L *d"]:
        return self.unpack(x.reshape(*x.shape[:2], 1, -1)).reshape(len(self.offsets) - 1, self.max_length, *x.shape[2:])

    def repeat_batch(self, x: Shaped[Tensor, "1 N *d"]) -> Shaped[Tensor, "1 M *d"]:
        return torch.cat((x, x), 1)

    def take_first_half(self, x: Shaped[Tensor, "1 M *d"]) -> Shaped[Tensor, "1 N *d"]:
        return x[:, : x.shape[1] // 2]

    def repeat_mask(self) -> Packing:
        """The packing of all sequences twice."""
        count, tokens = self.offsets.shape[0] - 1, self.sequence_ids.shape[1]
        return Packing(
            torch.cat((self.offsets[:-1], self.offsets + tokens)),
            torch.cat((self.sequence_ids, self.sequence_ids + count), 1),
            torch.cat((self.positions, self.positions), 1),
            torch.cat((self.keep, self.keep), 1),
            self.max_length,
        )

    def get_padded_mask(self) -> Bool[Tensor, "R L"]:
        return torch.arange(self.max_length, device=self.offsets.device) < self.offsets.diff()[:, None]

    def unpack(self, x: Shaped[Tensor, "1 N H E"]) -> Shaped[Tensor, "R L H E"]:
        """The padded form; after the end of a sequence follow tokens of the next one."""
        indices = self.offsets[:-1, None] + torch.arange(self.max_length, device=x.device)
        clamped = indices.clamp(max=x.shape[1] - 1).flatten()
        return x[0].index_select(0, clamped).unflatten(0, indices.shape)

    def pack(self, x: Shaped[Tensor, "R L *d"]) -> Shaped[Tensor, "1 N *d"]:
        indices = self.sequence_ids[0] * self.max_length + self.positions[0]
        return x.flatten(0, 1).index_select(0, indices)[None]


def build_packing(
    lengths: Sequence[int] | Int[Tensor, " R"], *, tokens: int | None = None, sequences: int | None = None
) -> Packing:
    """The packing of sequences of these lengths, filled up to `tokens` tokens and `sequences` sequences if given."""
    real = torch.as_tensor(lengths, dtype=torch.int64)
    max_length = int(real.max())
    max_length = max_length if tokens is None else round_up_length(max_length)  # only where shapes are to repeat
    missing = 0 if tokens is None else tokens - int(real.sum())
    padding = [max_length] * (missing // max_length) + [missing % max_length] * (missing % max_length > 0)
    all_lengths = torch.cat((real, torch.tensor(padding, dtype=torch.int64)))
    ends = all_lengths.cumsum(0)
    empty = 0 if sequences is None else sequences - len(all_lengths)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), ends, ends[-1:].expand(empty)))
    sequence_ids = torch.arange(len(all_lengths)).repeat_interleave(all_lengths)
    positions = torch.arange(len(sequence_ids)) - offsets[sequence_ids]
    return Packing(offsets.int(), sequence_ids[None], positions[None], (sequence_ids < len(real))[None], max_length)


def round_up_length(length: int) -> int:
    """The next of 16, 32, 64, 128, 256, 384, 512 ...: few enough values to compile a kernel or graph for each."""
    size = MIN_LENGTH_BUCKET
    while size < length and size < 128:
        size *= 2
    return size if length <= size else -(-length // 128) * 128
