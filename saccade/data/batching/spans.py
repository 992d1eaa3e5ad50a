"""Documents with spans hidden, for models that learn to restore them (Raffel et al. 2020, section 3.1.4).

Each row of text becomes two: what is read has a sentinel in the place of each hidden span, and what is written has each
sentinel with its span behind it. Which spans are hidden follows from the seed, the epoch and the number of the row. How
many tokens and spans, and so both lengths, follow from the length of the row alone: rows of text are cut so long that
what is read is exactly as long as the recipe says. (In the code of T5 a row begins with a seen token and ends with a
hidden one. Here it may begin and end with either: a short row with one hidden span would always lose its end.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saccade.config.schema import Data
from saccade.data.batching.batches import Rows
from saccade.data.batching.pieces import Pieces
from saccade.data.store.arrays import Store
from saccade.data.tokenization.special_tokens import SENTINEL
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.errors import SaccadeError

SOURCE, TARGET = 0, 1


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of the sentinels of a vocabulary, the first one first."""
    vocabulary, ours = tokenizer.core.get_vocab(), {theirs: ours for ours, theirs in enumerate(tokenizer.order)}
    found: list[int] = []
    while (piece := SENTINEL.format(len(found))) in vocabulary:
        found.append(ours[vocabulary[piece]])
    return found


def hidden_in(lengths: np.ndarray, *, share: float, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of rows of these lengths are hidden, and in how many spans; not all, where there are several."""
    tokens = np.clip(np.round(lengths * share), 1, np.maximum(lengths - 1, 1)).astype(np.int64)
    spans = np.clip(np.round(tokens / mean), 1, np.clip(lengths - tokens, 1, tokens)).astype(np.int64)
    return tokens, spans


def row_length(read: int, *, share: float, mean: float) -> int:
    """Tokens of the longest row of which no more than `read` are read, sentinels and END among them."""
    lengths = np.arange(1, 3 + int(read / (1 - share)))
    tokens, spans = hidden_in(lengths, share=share, mean=mean)
    return int(lengths[lengths - tokens + spans + 1 <= read].max(initial=1))


def hide_spans(store: Store, data: Data, tokenizer: Tokenizer) -> Spans:
    """The documents of a store as the recipe asks: in rows of one document each or of many, without their ends."""
    length = row_length(data.max_length, share=data.hidden, mean=data.span)
    rows = Pieces(store, length=length, cross=data.cross, ends=False)
    return Spans(rows, sentinels=sentinels_of(tokenizer), share=data.hidden, mean=data.span)


class Spans(Rows):
    """Rows of text as pairs, with everything that batches ask of a store; `key` decides which spans are hidden."""

    sides = ("source", "target")

    def __init__(
        self, rows: Pieces, *, sentinels: Sequence[int], share: float, mean: float, key: tuple[int, int] = (0, 0)
    ) -> None:
        _, most = hidden_in(np.array([rows.length]), share=share, mean=mean)
        if most[0] > len(sentinels):
            raise SaccadeError(
                f"rows of {rows.length} tokens have {most[0]} hidden spans, but the vocabulary has {len(sentinels)} "
                f"sentinels ({SENTINEL.format(0)} ...); lower data.max_length, or raise tokenizer.sentinels"
            )
        self.rows, self.sentinels, self.share, self.mean, self.key = rows, sentinels, share, mean, key
        self.name = f"{rows.name}, {share:g} of them hidden in spans of {mean:g}"
        self.variants, self.bytes, self.parts, self.weights = rows.variants, rows.bytes, rows.parts, rows.weights

    def in_epoch(self, seed: int, epoch: int) -> Spans:
        """Other spans, of rows that are cut at other places."""
        rows = self.rows.in_epoch(seed, epoch)
        return Spans(rows, sentinels=self.sentinels, share=self.share, mean=self.mean, key=(seed, epoch))

    def lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Tokens that are read of these rows, or written, END among them."""
        lengths = self.rows.lengths(rows, side=0, variant=variant)
        tokens, spans = hidden_in(lengths, share=self.share, mean=self.mean)
        shown: np.ndarray = lengths - tokens if side == SOURCE else tokens
        return shown + spans + 1

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """What is read of these rows, or written, one row after the other, and the lengths."""
        text, lengths = self.rows.gather(rows, side=0, variant=variant)
        runs, numbers = self._runs(rows, lengths)
        hidden = numbers >= 0
        kept = hidden == (side == TARGET)
        counts = np.where(kept, runs, 0)
        before = np.cumsum(counts) - counts
        marks = np.array(self.sentinels, dtype=text.dtype)[numbers[hidden]]
        made = np.insert(text[np.repeat(kept, runs)], before[hidden], marks)
        with_end = self.lengths(rows, side=side, variant=variant)
        return np.insert(made, np.cumsum(with_end - 1), END), with_end

    def _runs(self, rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the runs of all rows, seen and hidden in turn, and the number of a hidden one's sentinel, or -1."""
        tokens, spans = hidden_in(lengths, share=self.share, mean=self.mean)
        runs = np.empty(int((2 * spans + 1).sum()), dtype=np.int64)
        numbers = np.full_like(runs, -1)
        first = 0
        for row, length, hidden, count in zip(rows.tolist(), lengths, tokens, spans, strict=True):
            generator, last = np.random.default_rng([*self.key, row]), first + 2 * count + 1
            seen = cut(generator, length - hidden + 2, count + 1)
            seen[[0, -1]] -= 1  # a row may begin and end with a hidden span
            runs[first:last:2], runs[first + 1 : last : 2] = seen, cut(generator, hidden, count)
            numbers[first + 1 : last : 2] = np.arange(count)
            first = last
        return runs, numbers


def cut(generator: np.random.Generator, tokens: int, parts: int) -> np.ndarray:
    """Lengths of the parts of so many tokens, cut at random places; none is empty."""
    places = generator.choice(tokens - 1, parts - 1, replace=False) + 1
    return np.diff(np.sort(places), prepend=0, append=tokens)
