"""Span corruption, the pretraining objective of T5 (Raffel et al. 2020, section 3.1.4).

Each chunk of text becomes a pair: in the source a sentinel token replaces each corrupted span; the target lists each
sentinel followed by its span. Seed, epoch and row number determine the spans. The number of corrupted tokens and spans,
and so both lengths, depend only on the length of the chunk, which is chosen such that sources have exactly the length
that the recipe asks for. (In the code of T5 a row starts with an uncorrupted token and ends with a corrupted span. Here
it may start and end with either: otherwise a short row with a single span would always lose its end.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saccade.config.schema import Data
from saccade.data.batching.batches import Rows
from saccade.data.batching.chunks import DocumentChunks
from saccade.data.store.arrays import Store
from saccade.data.tokenization.special_tokens import SENTINEL_TOKEN
from saccade.data.tokenization.tokenizer import END, Tokenizer
from saccade.errors import SaccadeError

SOURCE, TARGET = 0, 1


def get_sentinels(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the sentinel tokens of a vocabulary, in their order."""
    vocabulary = tokenizer.backend.get_vocab()
    model_ids = {library_id: model_id for model_id, library_id in enumerate(tokenizer.library_ids)}
    sentinels: list[int] = []
    while (token := SENTINEL_TOKEN.format(len(sentinels))) in vocabulary:
        sentinels.append(model_ids[vocabulary[token]])
    return sentinels


def count_corrupted_tokens(
    lengths: np.ndarray, *, corruption_rate: float, mean_span_length: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of corrupted tokens and of spans of rows of these lengths; at least one token stays."""
    tokens = np.clip(np.round(lengths * corruption_rate), 1, np.maximum(lengths - 1, 1)).astype(np.int64)
    spans = np.clip(np.round(tokens / mean_span_length), 1, np.clip(lengths - tokens, 1, tokens)).astype(np.int64)
    return tokens, spans


def compute_row_length(source_length: int, *, corruption_rate: float, mean_span_length: float) -> int:
    """Return the length of the longest row whose source has at most `source_length` tokens, with sentinels and END."""
    lengths = np.arange(1, 3 + int(source_length / (1 - corruption_rate)))
    tokens, spans = count_corrupted_tokens(lengths, corruption_rate=corruption_rate, mean_span_length=mean_span_length)
    return int(lengths[lengths - tokens + spans + 1 <= source_length].max(initial=1))


def corrupt_spans(store: Store, data: Data, tokenizer: Tokenizer) -> CorruptedSpans:
    """Corrupt the documents of a store as the recipe asks."""
    length = compute_row_length(
        data.max_length, corruption_rate=data.corruption_rate, mean_span_length=data.mean_span_length
    )
    rows = DocumentChunks(store, length=length, cross_documents=data.cross_document, keep_end=False)
    return CorruptedSpans(
        rows,
        sentinels=get_sentinels(tokenizer),
        corruption_rate=data.corruption_rate,
        mean_span_length=data.mean_span_length,
    )


class CorruptedSpans(Rows):
    """Pairs of corrupted text and the spans that are missing in it; `seed_key` determines the spans."""

    sides = ("source", "target")

    def __init__(
        self,
        rows: DocumentChunks,
        *,
        sentinels: Sequence[int],
        corruption_rate: float,
        mean_span_length: float,
        seed_key: tuple[int, int] = (0, 0),
    ) -> None:
        _, num_spans = count_corrupted_tokens(
            np.array([rows.length]), corruption_rate=corruption_rate, mean_span_length=mean_span_length
        )
        if num_spans[0] > len(sentinels):
            raise SaccadeError(
                f"rows of {rows.length} tokens have {num_spans[0]} corrupted spans, but the vocabulary has "
                f"{len(sentinels)} sentinels ({SENTINEL_TOKEN.format(0)} ...); lower data.max_length, or raise "
                "tokenizer.sentinels"
            )
        self.rows, self.sentinels, self.seed_key = rows, sentinels, seed_key
        self.corruption_rate, self.mean_span_length = corruption_rate, mean_span_length
        # Saved in checkpoints and compared when a run resumes: the text must not change.
        self.name = f"{rows.name}, {corruption_rate:g} of them hidden in spans of {mean_span_length:g}"
        self.num_variants, self.num_bytes = rows.num_variants, rows.num_bytes
        self.corpus_sizes, self.weights = rows.corpus_sizes, rows.weights

    def select_epoch(self, seed: int, epoch: int) -> CorruptedSpans:
        """Return other chunks of the documents with other spans."""
        rows = self.rows.select_epoch(seed, epoch)
        return CorruptedSpans(
            rows,
            sentinels=self.sentinels,
            corruption_rate=self.corruption_rate,
            mean_span_length=self.mean_span_length,
            seed_key=(seed, epoch),
        )

    def get_lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Return the number of tokens of these sources or targets, END included."""
        lengths = self.rows.get_lengths(rows, side=0, variant=variant)
        tokens, spans = self._count_corrupted_tokens(lengths)
        text: np.ndarray = lengths - tokens if side == SOURCE else tokens
        return text + spans + 1

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these sources or targets, concatenated, and their lengths."""
        text, lengths = self.rows.gather(rows, side=0, variant=variant)
        runs, sentinels = self._sample_spans(rows, lengths)
        is_span = sentinels >= 0
        keep = is_span == (side == TARGET)
        counts = np.where(keep, runs, 0)
        before = np.cumsum(counts) - counts
        marks = np.array(self.sentinels, dtype=text.dtype)[sentinels[is_span]]
        marked = np.insert(text[np.repeat(keep, runs)], before[is_span], marks)
        lengths = self.get_lengths(rows, side=side, variant=variant)
        return np.insert(marked, np.cumsum(lengths - 1), END), lengths

    def _count_corrupted_tokens(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return count_corrupted_tokens(
            lengths, corruption_rate=self.corruption_rate, mean_span_length=self.mean_span_length
        )

    def _sample_spans(self, rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sample the lengths of alternating runs of text and corrupted spans, for all rows.

        Also return for each run the number of its sentinel, or -1 for text.
        """
        tokens, spans = self._count_corrupted_tokens(lengths)
        runs = np.empty(int((2 * spans + 1).sum()), dtype=np.int64)
        sentinels = np.full_like(runs, -1)
        first = 0
        for row, length, corrupted, count in zip(rows.tolist(), lengths, tokens, spans, strict=True):
            generator, last = np.random.default_rng([*self.seed_key, row]), first + 2 * count + 1
            text = split_randomly(generator, length - corrupted + 2, count + 1)
            text[[0, -1]] -= 1  # the first and the last run of text may be empty
            runs[first:last:2], runs[first + 1 : last : 2] = text, split_randomly(generator, corrupted, count)
            sentinels[first + 1 : last : 2] = np.arange(count)
            first = last
        return runs, sentinels


def split_randomly(generator: np.random.Generator, tokens: int, parts: int) -> np.ndarray:
    """Split a number of tokens at random into parts; return their lengths, none of which is 0."""
    bounds = generator.choice(tokens - 1, parts - 1, replace=False) + 1
    return np.diff(np.sort(bounds), prepend=0, append=tokens)
