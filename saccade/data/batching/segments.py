"""Rows for an encoder: chunks of documents with special tokens, or pairs of segments for sentence-level objectives.

A row starts with the prefix tokens of the tokenizer and ends with END. With pairs, a row is two consecutive segments of
a document, A END B END, split at the end of a sentence if there is one. Half of the rows are negative examples: B comes
from elsewhere (`next`, Devlin et al. 2019), or A and B are swapped (`order`, Lan et al. 2020). Seed, epoch and row
number determine which rows are negative and where they are split. Segments are whole sentences, and a B from elsewhere
is about as long as the one that it replaces: otherwise a broken sentence or a short row would give the answer away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from saccade.config.schema import Recipe
from saccade.data.batching.batches import Rows
from saccade.data.batching.chunks import DocumentChunks
from saccade.data.store.arrays import Store
from saccade.data.tokenization.text_pairs import count_separators
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.errors import SaccadeError

ROW_FIELD, PAIR_FIELD = "source", "pair"  # names of batch fields
IS_NEXT, NOT_NEXT, TOO_SHORT = 0, 1, 2  # labels of a pair; the last if a row is too short for two segments
EXCLUDED_NEIGHBORS = 1  # rows before and after a row that its second segment is not taken from
SPLIT, NEGATIVE, OTHER_ROW = range(3)  # purposes of a random number


class SplitRows(NamedTuple):
    """The text tokens of some rows, concatenated, and where the second segment of each starts."""

    tokens: np.ndarray
    lengths: np.ndarray
    splits: np.ndarray
    can_start: np.ndarray  # for each token whether a segment may start with it
    spare_tokens: np.ndarray  # tokens by which the second segment of each row may be longer

    @property
    def offsets(self) -> np.ndarray:
        """Index of the first token of each row."""
        return np.cumsum(self.lengths) - self.lengths

    def take(self, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return `count` tokens of each row, starting at `first`."""
        return self.tokens[_expand_ranges(self.offsets + first, count)]


class SegmentPairs(Rows):
    """Chunks of documents with special tokens, as single segments (`pairs` "none") or as pairs of segments."""

    def __init__(
        self,
        chunks: DocumentChunks,
        *,
        length: int,
        prefix_ids: tuple[int, ...],
        num_separators: int,
        pairs: str,
        resample_each_epoch: bool,
        key: int = 0,
    ) -> None:
        """`num_separators`: ENDs between two segments; `resample_each_epoch`: split at other places in each epoch."""
        self.chunks, self.length, self.pairs, self.resample_each_epoch = chunks, length, pairs, resample_each_epoch
        self._prefix_ids, self._num_separators, self._key = prefix_ids, num_separators, key
        self._num_special_tokens = length - chunks.length
        # Saved in checkpoints and compared when a run resumes: the text must not change.
        self.name = f"{chunks.name} with {self._num_special_tokens} around them, pairs {pairs}"
        self.sides: tuple[str, ...] = (ROW_FIELD,) if pairs == "none" else (ROW_FIELD, PAIR_FIELD)
        self.num_variants, self.num_bytes = chunks.num_variants, chunks.num_bytes
        self.corpus_sizes, self.weights = chunks.corpus_sizes, chunks.weights
        self.max_tokens = min(length, chunks.max_tokens + self._num_special_tokens)

    def select_epoch(self, seed: int, epoch: int) -> SegmentPairs:
        epoch = epoch if self.resample_each_epoch else 0
        key = int(np.random.default_rng([seed, epoch, 2]).integers(2**62))
        return SegmentPairs(
            self.chunks.select_epoch(seed, epoch), length=self.length, prefix_ids=self._prefix_ids,
            num_separators=self._num_separators, pairs=self.pairs,
            resample_each_epoch=self.resample_each_epoch, key=key,
        )  # fmt: skip

    def get_lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Return an upper bound of the lengths: inner ENDs are removed, and a replaced segment may be shorter.

        The bound must not depend on whether a row is negative, since batches are formed by length.
        """
        if self.sides[side] == PAIR_FIELD:
            return np.ones(len(rows), dtype=np.int64)
        return self.chunks.get_lengths(rows, side=0) + self._num_special_tokens

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these rows, concatenated, and their lengths; or the labels of the pairs."""
        if self.pairs == "none":
            return self._add_special_tokens([self._get_tokens(rows)])
        own = self._split_rows(rows)
        can_split = own.lengths > 1
        negative = self._sample_negatives(rows) & can_split
        if self.sides[side] == PAIR_FIELD:
            return np.where(can_split, np.where(negative, NOT_NEXT, IS_NEXT), TOO_SHORT), np.ones(len(rows), np.int64)
        if self.pairs == "order":
            return self._add_special_tokens(_swap_segments(own, negative))
        others = self._split_rows(self._sample_other_rows(rows))
        return self._add_special_tokens(_replace_second_segments(own, others, negative))

    def _get_tokens(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these rows without prefix tokens and without END at the end of a row."""
        tokens, lengths = self.chunks.gather(rows, side=0)
        last = np.zeros(len(tokens), dtype=bool)
        last[np.cumsum(lengths) - 1] = True
        return _filter_tokens(tokens, lengths, ~np.isin(tokens, self._prefix_ids) & ~(last & (tokens == END)))

    def _split_rows(self, rows: np.ndarray) -> SplitRows:
        """Split each row at the end of a random sentence, or at a random token if it has only one sentence."""
        tokens, lengths = self.chunks.gather(rows, side=0)
        row_of_token, ends = np.repeat(np.arange(len(rows)), lengths), tokens == END
        text = ~ends & ~np.isin(tokens, self._prefix_ids)
        keep = text & _mark_whole_sentences(ends, row_of_token, self.chunks.get_offsets(rows) > 0)
        kept, counts = _filter_tokens(tokens, lengths, keep)
        offsets = np.cumsum(counts) - counts
        before = np.cumsum(keep) - offsets[row_of_token]  # kept tokens of the row before each token
        inside = ends & (before > 0) & (before < counts[row_of_token])
        candidate_rows, candidates = row_of_token[inside], before[inside]
        num_candidates = np.bincount(candidate_rows, minlength=len(rows))
        uniform = self._sample_uniform(rows, SPLIT)
        first = np.cumsum(num_candidates) - num_candidates
        chosen = np.minimum(first + (uniform * num_candidates).astype(np.int64), max(len(candidates) - 1, 0))
        anywhere = np.minimum(1 + (uniform * (counts - 1)).astype(np.int64), counts)
        splits = np.where(num_candidates > 0, candidates[chosen] if len(candidates) else 0, anywhere)
        can_start = np.repeat(num_candidates == 0, counts)
        can_start[np.concatenate((offsets[counts > 0], offsets[candidate_rows] + candidates))] = True
        unfinished = np.bincount(row_of_token[text & ~keep & (before == counts[row_of_token])], minlength=len(rows))
        spare = np.where(unfinished > 0, unfinished, num_candidates)  # at least the positions of the removed ENDs
        return SplitRows(kept, counts, splits, can_start, spare)

    def _add_special_tokens(self, segments: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Concatenate prefix tokens, segments with separators between them, and END; return tokens and lengths."""
        count = len(segments[0][1])
        parts = [_repeat_ids(self._prefix_ids, count)]
        for number, segment in enumerate(segments):
            parts += [_repeat_ids((END,) * self._num_separators, count)] if number else []
            parts.append(segment)
        return _concatenate_rows([*parts, _repeat_ids((END,), count)])

    def _sample_negatives(self, rows: np.ndarray) -> np.ndarray:
        """Sample for each row whether it is a negative example."""
        enough = self.pairs == "order" or len(self) > 2 * EXCLUDED_NEIGHBORS + 1
        return (self._sample_uniform(rows, NEGATIVE) < 0.5) & enough

    def _sample_other_rows(self, rows: np.ndarray) -> np.ndarray:
        """Sample another row for each, not a neighbour of it."""
        choices = len(self) - 2 * EXCLUDED_NEIGHBORS - 1
        distance = EXCLUDED_NEIGHBORS + 1 + (self._sample_uniform(rows, OTHER_ROW) * choices).astype(np.int64)
        return (rows.astype(np.int64) + np.maximum(distance, 0)) % len(self)

    def _sample_uniform(self, rows: np.ndarray, purpose: int) -> np.ndarray:
        """Return a number in [0, 1) for each row, a hash of row and purpose (splitmix64, Steele et al. 2014)."""
        with np.errstate(over="ignore"):
            x = (rows.astype(np.uint64) * np.uint64(3) + np.uint64(purpose + 1)) * np.uint64(0x9E3779B97F4A7C15)
            x += np.uint64(self._key)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def needs_sentence_pairs(recipe: Recipe) -> bool:
    """Whether an objective predicts if two segments follow each other."""
    return any(objective.sentence_pairs != "none" for objective in recipe.objectives)


def build_segments(store: Store, recipe: Recipe, tokenizer: Tokenizer) -> SegmentPairs:
    """Build the rows that the objectives of a recipe need from the documents of a store."""
    pairs = next((one.sentence_pairs for one in recipe.objectives if one.sentence_pairs != "none"), "none")
    separators = count_separators(tokenizer)
    num_special = len(tokenizer.prefix_ids) + 1 + (0 if pairs == "none" else separators)
    chunk_length = recipe.data.max_length - num_special
    if chunk_length < 2:
        raise SaccadeError(
            f"data.max_length must be at least {num_special + 2}, for {num_special} special tokens and some text, got "
            f"{recipe.data.max_length}"
        )
    return SegmentPairs(
        DocumentChunks(store, length=chunk_length, cross_documents=recipe.data.cross_document),
        length=recipe.data.max_length, prefix_ids=tokenizer.prefix_ids, num_separators=separators, pairs=pairs,
        resample_each_epoch=all(objective.remasks_each_epoch for objective in recipe.objectives),
    )  # fmt: skip


def _swap_segments(own: SplitRows, swap: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return both segments of each row, in reversed order where `swap` is true."""
    zeros, rest = np.zeros_like(own.splits), own.lengths - own.splits
    first = (np.where(swap, own.splits, zeros), np.where(swap, rest, own.splits))
    second = (np.where(swap, zeros, own.splits), np.where(swap, own.splits, rest))
    return [(own.take(*segment), segment[1]) for segment in (first, second)]


def _replace_second_segments(
    own: SplitRows, others: SplitRows, replace: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return both segments of each row; where `replace` is true, the second is taken from another row.

    It is a run of whole sentences that is at most as long as the segment that it replaces and the row's spare tokens.
    """
    rest, other_offsets = own.lengths - own.splits, others.offsets
    max_length, splits = rest + own.spare_tokens, np.where(others.lengths > 1, others.splits, 0)
    indices = np.arange(len(others.tokens) + 1)
    sentence_start = np.maximum.accumulate(np.where(np.append(others.can_start, True), indices, 0))
    first = sentence_start[
        other_offsets + np.clip(others.lengths - max_length, 0, splits)
    ]  # leaves enough tokens behind
    end = np.minimum(first + max_length, other_offsets + others.lengths)
    end = np.where(sentence_start[end] > first, sentence_start[end], end)
    size = np.where(replace, end - first, rest)
    starts = np.where(replace, len(own.tokens) + first, own.offsets + own.splits)
    second = np.concatenate((own.tokens, others.tokens))[_expand_ranges(starts, size)]
    return [(own.take(np.zeros_like(own.splits), own.splits), own.splits), (second, size)]


def _mark_whole_sentences(ends: np.ndarray, row_of_token: np.ndarray, starts_inside: np.ndarray) -> np.ndarray:
    """Return which tokens belong to sentences that start and end in their row; all tokens if there are fewer than two.

    `ends` marks the END of each sentence; `starts_inside` marks rows that start in the middle of a sentence.
    """
    total = np.bincount(row_of_token[ends], minlength=len(starts_inside))
    sentence = np.cumsum(ends) - ends - (np.cumsum(total) - total)[row_of_token]
    whole: np.ndarray = (sentence >= starts_inside[row_of_token]) & (sentence < total[row_of_token])
    return whole | (total - starts_inside < 2)[row_of_token]


def _expand_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the concatenated ranges start, start + 1, ..., start + count - 1."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)


def _filter_tokens(tokens: np.ndarray, lengths: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens to keep, and how many of each row they are."""
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)
    return tokens[keep], np.bincount(row_of_token[keep], minlength=len(lengths))


def _repeat_ids(ids: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same ids for each of `count` rows, concatenated, and their lengths."""
    return np.tile(np.array(ids, dtype=np.int64), count), np.full(count, len(ids), dtype=np.int64)


def _concatenate_rows(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the parts of each row; a part is given as the tokens of all rows and their lengths."""
    lengths = np.sum([sizes for _, sizes in parts], axis=0)
    rows = np.empty(int(lengths.sum()), dtype=np.int64)
    offsets = np.cumsum(lengths) - lengths
    for tokens, sizes in parts:
        rows[_expand_ranges(offsets, sizes)] = tokens
        offsets = offsets + sizes
    return rows, lengths
