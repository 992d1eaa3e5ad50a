"""Rows of documents for an encoder: each begins as every text does, and ends with END.

With pairs, a row is two parts of a document that follow each other, A END B END, cut at the end of a sentence where
there is one. In half of the rows that is not so: B is taken from elsewhere (`next`, Devlin et al. 2019), or A and B
change their places (`order`, Lan et al. 2020). Which rows these are, and where they are cut, follows from the seed, the
epoch and the number of the row. Rows are of whole sentences, and what is taken from elsewhere is about as long as what
it replaces: else an unfinished sentence or a short row would tell which ones these are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from saccade.config.schema import Recipe
from saccade.data.batching.batches import Rows
from saccade.data.batching.pieces import Pieces
from saccade.data.store.arrays import Store
from saccade.data.tokenization.text_pairs import separators
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.errors import SaccadeError

ROWS, PAIR = "source", "pair"  # fields of a batch
FOLLOWS, APART, ALONE = 0, 1, 2  # what is said of a pair; the last of a row that is too short for two parts
NEAR = 1  # rows before and behind one, from which its second part is not taken
SPLIT, CHANGE, OTHER = range(3)  # what a number is drawn for


class Cut(NamedTuple):
    """The words of some rows, one row after the other, and where the second part of each begins."""

    words: np.ndarray
    lengths: np.ndarray
    splits: np.ndarray
    opens: np.ndarray  # for each word whether a part may begin with it
    spare: np.ndarray  # words by which the second part of each could be longer

    @property
    def begins(self) -> np.ndarray:
        """The place of each row's first word among all words."""
        return np.cumsum(self.lengths) - self.lengths

    def part(self, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """`count` words of each row from `first` on."""
        return self.words[_runs(self.begins + first, count)]


class Segments(Rows):
    """Pieces of documents as rows, with everything that batches ask of a store."""

    def __init__(
        self, pieces: Pieces, *, length: int, begin: tuple[int, ...], between: int, pairs: str, anew: bool, key: int = 0
    ) -> None:
        """`between` END stand between both parts; `anew`: cut at other places in each epoch."""
        self.pieces, self.length, self.pairs, self.anew = pieces, length, pairs, anew
        self._begin, self._between, self._key = begin, between, key
        self._around = length - pieces.length  # special pieces of a row
        self.name = f"{pieces.name} with {self._around} around them, pairs {pairs}"
        self.sides: tuple[str, ...] = (ROWS,) if pairs == "none" else (ROWS, PAIR)
        self.variants, self.bytes = pieces.variants, pieces.bytes
        self.parts, self.weights = pieces.parts, pieces.weights
        self.longest = min(length, pieces.longest + self._around)

    def in_epoch(self, seed: int, epoch: int) -> Segments:
        epoch = epoch if self.anew else 0
        key = int(np.random.default_rng([seed, epoch, 2]).integers(2**62))
        return Segments(
            self.pieces.in_epoch(seed, epoch), length=self.length, begin=self._begin, between=self._between,
            pairs=self.pairs, anew=self.anew, key=key,
        )  # fmt: skip

    def lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """No row is longer; it may be shorter, as the ends of sentences are taken out and others' parts are shorter.

        That must not follow from whether its parts belong together, or batches of one length would tell it.
        """
        if self.sides[side] == PAIR:
            return np.ones(len(rows), dtype=np.int64)
        return self.pieces.lengths(rows, side=0) + self._around

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these rows, one row after the other, and their lengths; or what is said of their parts."""
        if self.pairs == "none":
            words, lengths = self._words(rows)
            return self._framed([(words, lengths)])
        own = self._cut(rows)
        changed = self._changed(rows) & (own.lengths > 1)
        if self.sides[side] == PAIR:
            return np.where(own.lengths > 1, np.where(changed, APART, FOLLOWS), ALONE), np.ones(len(rows), np.int64)
        if self.pairs == "order":
            return self._framed(_in_order(own, changed))
        return self._framed(_with_others(own, self._cut(self._others(rows)), changed))

    # ---- inside

    def _words(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Without what begins a document and what ends a row."""
        tokens, lengths = self.pieces.gather(rows, side=0)
        last = np.zeros(len(tokens), dtype=bool)
        last[np.cumsum(lengths) - 1] = True
        return _kept(tokens, lengths, ~np.isin(tokens, self._begin) & ~(last & (tokens == END)))

    def _cut(self, rows: np.ndarray) -> Cut:
        """Words and splits of rows: at the end of a sentence, any of them, or anywhere where there is none."""
        tokens, lengths = self.pieces.gather(rows, side=0)
        numbers, ends = np.repeat(np.arange(len(rows)), lengths), tokens == END
        text = ~ends & ~np.isin(tokens, self._begin)
        kept = text & _whole(ends, numbers, self.pieces.begins(rows) > 0)
        words, counts = _kept(tokens, lengths, kept)
        begins = np.cumsum(counts) - counts
        before = np.cumsum(kept) - begins[numbers]
        inside = ends & (before > 0) & (before < counts[numbers])
        where, places = numbers[inside], before[inside]
        choices = np.bincount(where, minlength=len(rows))
        drawn = self._drawn(rows, SPLIT)
        chosen = np.minimum(np.cumsum(choices) - choices + (drawn * choices).astype(np.int64), max(len(places) - 1, 0))
        anywhere = np.minimum(1 + (drawn * (counts - 1)).astype(np.int64), counts)
        opens = np.repeat(choices == 0, counts)
        opens[np.concatenate((begins[counts > 0], begins[where] + places))] = True
        unfinished = np.bincount(numbers[text & ~kept & (before == counts[numbers])], minlength=len(rows))
        spare = np.where(unfinished > 0, unfinished, choices)  # at least the places of the ends that were taken out
        return Cut(words, counts, np.where(choices > 0, places[chosen] if len(places) else 0, anywhere), opens, spare)

    def _framed(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Rows of what begins them, their parts with END behind the first one, and END."""
        count = len(parts[0][1])
        framed = [_repeated(self._begin, count)]
        for number, part in enumerate(parts):
            framed += [_repeated((END,) * self._between, count)] if number else []
            framed.append(part)
        return _side_by_side([*framed, _repeated((END,), count)])

    def _changed(self, rows: np.ndarray) -> np.ndarray:
        """Whether the second part of a row does not follow the first."""
        enough = self.pairs == "order" or len(self) > 2 * NEAR + 1
        return (self._drawn(rows, CHANGE) < 0.5) & enough

    def _others(self, rows: np.ndarray) -> np.ndarray:
        """Another row for each, none near to it."""
        apart = NEAR + 1 + (self._drawn(rows, OTHER) * (len(self) - 2 * NEAR - 1)).astype(np.int64)
        return (rows.astype(np.int64) + np.maximum(apart, 0)) % len(self)

    def _drawn(self, rows: np.ndarray, what: int) -> np.ndarray:
        """A number from 0 to below 1 for each row, the same whenever it is asked (splitmix64, Steele et al. 2014)."""
        with np.errstate(over="ignore"):
            x = (rows.astype(np.uint64) * np.uint64(3) + np.uint64(what + 1)) * np.uint64(0x9E3779B97F4A7C15)
            x += np.uint64(self._key)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def wants_pairs(recipe: Recipe) -> bool:
    """Whether an objective asks if parts of a text follow each other."""
    return any(objective.sentence_pairs != "none" for objective in recipe.objectives)


def in_segments(store: Store, recipe: Recipe, tokenizer: Tokenizer) -> Segments:
    """The documents of a store as the recipe's objectives want them."""
    pairs = next((one.sentence_pairs for one in recipe.objectives if one.sentence_pairs != "none"), "none")
    between = separators(tokenizer)
    around = len(tokenizer.begin) + 1 + (0 if pairs == "none" else between)
    room = recipe.data.max_length - around
    if room < 2:
        raise SaccadeError(
            f"data.max_length must be at least {around + 2}, for {around} special pieces and some text, got "
            f"{recipe.data.max_length}"
        )
    return Segments(
        Pieces(store, length=room, cross=recipe.data.cross), length=recipe.data.max_length, begin=tokenizer.begin,
        between=between, pairs=pairs, anew=all(objective.redraws for objective in recipe.objectives),
    )  # fmt: skip


def _in_order(own: Cut, changed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both parts, the second one first where that is wanted."""
    zeros, rest = np.zeros_like(own.splits), own.lengths - own.splits
    first = (np.where(changed, own.splits, zeros), np.where(changed, rest, own.splits))
    second = (np.where(changed, zeros, own.splits), np.where(changed, own.splits, rest))
    return [(own.part(*part), part[1]) for part in (first, second)]


def _with_others(own: Cut, others: Cut, changed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both parts, the second one of another row where that is wanted: so many whole sentences as there is room for."""
    rest, there = own.lengths - own.splits, others.begins
    room, splits = rest + own.spare, np.where(others.lengths > 1, others.splits, 0)
    places = np.arange(len(others.words) + 1)
    open_before = np.maximum.accumulate(np.where(np.append(others.opens, True), places, 0))
    first = open_before[there + np.clip(others.lengths - room, 0, splits)]  # so that enough words stand behind it
    behind = np.minimum(first + room, there + others.lengths)
    last = np.where(open_before[behind] > first, open_before[behind], behind)
    size = np.where(changed, last - first, rest)
    begins = np.where(changed, len(own.words) + first, own.begins + own.splits)
    second = np.concatenate((own.words, others.words))[_runs(begins, size)]
    return [(own.part(np.zeros_like(own.splits), own.splits), own.splits), (second, size)]


def _whole(ends: np.ndarray, numbers: np.ndarray, begun: np.ndarray) -> np.ndarray:
    """Which tokens belong to sentences that begin and end in their row, where there are two of these; or else all.

    `ends` are those of sentences, `numbers` the row of each token; `begun` rows begin inside of a sentence.
    """
    total = np.bincount(numbers[ends], minlength=len(begun))
    sentence = np.cumsum(ends) - ends - (np.cumsum(total) - total)[numbers]
    whole: np.ndarray = (sentence >= begun[numbers]) & (sentence < total[numbers])
    return whole | (total - begun < 2)[numbers]


def _runs(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """So many places from each beginning on, one run after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - counts), counts)


def _kept(tokens: np.ndarray, lengths: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those tokens of each row, and how many there are."""
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    return tokens[keep], np.bincount(numbers[keep], minlength=len(lengths))


def _repeated(ids: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The same ids for each of so many rows."""
    return np.tile(np.array(ids, dtype=np.int64), count), np.full(count, len(ids), dtype=np.int64)


def _side_by_side(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of several parts, each given one row after the other: row by row, and their lengths."""
    lengths = np.sum([sizes for _, sizes in parts], axis=0)
    row = np.empty(int(lengths.sum()), dtype=np.int64)
    at = np.cumsum(lengths) - lengths
    for tokens, sizes in parts:
        row[_runs(at, sizes)] = tokens
        at = at + sizes
    return row, lengths
