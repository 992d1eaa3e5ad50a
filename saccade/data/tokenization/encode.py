"""Tokenize rows of text into the arrays of a store; only one block of rows is in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.tokenization.bpe_dropout import BPEDropout
from saccade.data.tokenization.labels import NO_CLASS, Labels
from saccade.data.tokenization.text_pairs import encode_texts, split_texts
from saccade.data.tokenization.tokenizer import END, Tokenizer, Tokenizers
from saccade.data.tokenization.words import encode_words

# ---- Sentences of documents

# The end of a sentence: a final mark and closing quotes and brackets, before a space that no lower-case letter follows;
# or the end of a line.
SENTENCE_END = re.compile(r"""(?:[.!?…]["”’')\]]*(?=\s+[^\sa-zß-öø-ÿ])|[。！？](?=.)|(?<=\S)(?=\n))""")


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences; their concatenation is the text, so a sentence may start with a space."""
    bounds = [0, *(found.end() for found in SENTENCE_END.finditer(text)), len(text)]
    parts = [text[first:last] for first, last in pairwise(bounds)]
    return [part for part in parts if part.strip()]


def prepends_space(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer prepends a space to every text, so that sentences must not start with one."""
    rules = json.dumps([tokenizer.settings["normalizer"], tokenizer.settings["pre_tokenizer"]])
    return "Prepend" in rules or "Metaspace" in rules


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts with an END behind each sentence."""
    sentences = [split_sentences(text) for text in texts]
    if prepends_space(tokenizer):
        sentences = [[sentence.lstrip() for sentence in found] for found in sentences]
    rows = iter(tokenizer.encode_all([sentence for found in sentences for sentence in found]))
    before = len(tokenizer.prefix_ids)
    return [[*tokenizer.prefix_ids, *(id for _ in found for id in next(rows)[before:])] for found in sentences]


@dataclass
class EncodingCounts:
    """Counts of a tokenization: all rows, and for each reason to drop rows their number and where the first one is."""

    total: int = 0
    max_tokens: int = 0
    num_bytes: int = 0
    empty: list[int] = field(default_factory=list)  # number of dropped rows, corpus and line of the first one
    long: list[int] = field(default_factory=list)

    def filter_complete(self, block: Iterable[Any], corpus: int) -> list[tuple[int, list[str]]]:
        """Count all rows; return line and texts of those without an empty text."""
        rows = []
        for line, *texts in block:
            self.total += 1
            if all(text.strip() for text in texts):
                rows.append((line, texts))
            else:
                self.count_dropped(self.empty, corpus, line)
        return rows

    def count_dropped(self, counter: list[int], corpus: int, line: int) -> None:
        counter[:] = [counter[0] + 1, *counter[1:]] if counter else [1, corpus, line]


# ---- Texts with labels


Ids = list[list[int]]


def encode_lines(tokenizers: Tokenizers, lines: Sequence[str], *, max_length: int = 0) -> Ids:
    """Encode lines as inputs of a model; a tab separates a pair of texts with a label; 0 is no `max_length`."""
    labels = tokenizers.labels
    if labels is None or labels.per_word:
        return tokenizers.source.encode_all(lines)
    return encode_texts(tokenizers.source, [split_texts(line) for line in lines], max_length=max_length or None)


class LabelledEncoder:
    """Encodes blocks of texts with labels; rows that are too long are dropped, or truncated with `truncate`."""

    def __init__(self, tokenizer: Tokenizer, labels: Labels, *, max_length: int | None, truncate: bool) -> None:
        self._tokenizer, self._labels = tokenizer, labels
        self._max_length, self._truncate = max_length, truncate

    @property
    def id_bound(self) -> int:
        """All ids are smaller."""
        return 2**32 if self._labels.is_number else max(self._tokenizer.size, len(self._labels.names) + 1)

    def encode_block(self, block: list[Any], corpus: int, counts: EncodingCounts) -> list[Ids]:
        """Return the ids of texts and labels of the rows that are kept."""
        complete = counts.filter_complete(block, corpus)
        inputs, labels = self._encode_tagged(complete) if self._labels.per_word else self._encode_labelled(complete)
        kept = []
        for index, (line, texts) in enumerate(complete):
            if self._max_length is None or len(inputs[index]) <= self._max_length:
                kept.append(index)
                counts.num_bytes += sum(len(text.encode()) for text in texts[:-1])
            else:
                counts.count_dropped(counts.long, corpus, line)
        return [[side[i] for i in kept] for side in (inputs, labels)]

    def encode_variant(self, number: int, plain: list[Ids]) -> list[Ids]:
        """Return the plain ids: there is no dropout."""
        return plain

    def _encode_labelled(self, rows: list[Any]) -> tuple[Ids, Ids]:
        """Encode one text or two with one label."""
        limit = self._max_length if self._truncate else None
        inputs = encode_texts(self._tokenizer, [tuple(texts[:-1]) for _, texts in rows], max_length=limit)
        return inputs, [self._labels.encode(texts[-1]) for _, texts in rows]

    def _encode_tagged(self, rows: list[Any]) -> tuple[Ids, Ids]:
        """Encode words and tags; the tag of a word is at its first token, NO_CLASS at the others."""
        inputs, labels = [], []
        for (_, texts), (ids, first_tokens) in zip(
            rows, encode_words(self._tokenizer, [texts[0] for _, texts in rows]), strict=True
        ):
            tags = [NO_CLASS] * len(ids)
            for token, tag in zip(first_tokens, self._labels.encode(texts[-1]), strict=True):
                tags[token] = tags[token] or tag
            if self._truncate and self._max_length is not None and len(ids) > self._max_length:
                ids, tags = [*ids[: self._max_length - 1], END], [*tags[: self._max_length - 1], NO_CLASS]
            inputs.append(ids)
            labels.append(tags)
        return inputs, labels


# ---- All rows of a corpus


Corpora = Sequence[Callable[[], Iterator[Any]]]  # functions that open rows: a line number, and a text for each side

MAX_UINT16_IDS = 2**16  # larger vocabularies are stored as uint32
BLOCK_ROWS = 2_000
BLOCK_CHARACTERS = 1_000_000  # a block of long texts has fewer rows


@dataclass(frozen=True)
class EncodingSettings:
    """How rows of text become token ids."""

    max_length: int | None  # tokens of a side; longer rows are dropped or truncated; None: no limit
    dropout: float = 0.0  # rate of BPE dropout
    variants: int = 1  # tokenizations of each row with other dropout
    sides: tuple[str, ...] = ("source", "target")
    mark_sentences: bool = False  # END behind every sentence of a document, not only behind the last
    truncate: bool = False  # truncate labelled texts that are too long instead of dropping them

    def __post_init__(self) -> None:
        if not self.dropout:  # all variants would be equal
            object.__setattr__(self, "variants", 1)

    def without_dropout(self) -> EncodingSettings:
        return replace(self, dropout=0.0)

    @property
    def cache_key(self) -> str:
        """Part of the hash that names cached data and that a run resumes by: it must stay as it was in 0.8."""
        return (
            f"Settings(max_length={self.max_length!r}, dropout={self.dropout!r}, variants={self.variants!r}, "
            f"sides={self.sides!r}, by_sentence={self.mark_sentences!r}, cut={self.truncate!r})"
        )


def encode_rows(
    folder: Path, corpora: Corpora, tokenizers: Tokenizers, settings: EncodingSettings, encoder: Any = None
) -> dict[str, Any]:
    """Write the arrays of all corpora, one after the other; return the metadata of the store.

    Rows have one text for each side. `encoder` encodes rows that are not only texts.
    """
    from saccade.data.store.arrays import ArrayWriter  # imports torch

    encoder = encoder or build_encoder(tokenizers, settings)
    dtype = "uint16" if encoder.id_bound <= MAX_UINT16_IDS else "uint32"
    counts, corpus_sizes = EncodingCounts(), []
    with ExitStack() as files:
        writers = [
            [files.enter_context(ArrayWriter(folder, name=f"{side}-{number}", dtype=dtype)) for side in settings.sides]
            for number in range(settings.variants)
        ]
        for corpus, rows in enumerate(corpora):
            kept = 0
            for block in _iter_blocks(rows()):
                plain = encoder.encode_block(block, corpus, counts)
                kept += len(plain[0])
                for number, side_writers in enumerate(writers):
                    sides = encoder.encode_variant(number, plain)
                    for writer, side in zip(side_writers, sides, strict=True):
                        writer.append(side)
                    counts.max_tokens = max([counts.max_tokens, *map(len, chain(*sides))])
            corpus_sizes.append(kept)
    written = {name: found for writer in chain(*writers) for name, found in writer.get_files().items()}
    return {
        "dtype": dtype, "sides": settings.sides, "parts": corpus_sizes, "variants": settings.variants,
        "longest": counts.max_tokens, "bytes": counts.num_bytes, "total": counts.total, "empty": counts.empty,
        "long": counts.long, "files": written,
    }  # fmt: skip


def build_encoder(tokenizers: Tokenizers, settings: EncodingSettings) -> TextEncoder | LabelledEncoder:
    if tokenizers.labels is None:
        return TextEncoder(tokenizers, settings)
    return LabelledEncoder(
        tokenizers.source, tokenizers.labels, max_length=settings.max_length, truncate=settings.truncate
    )


class TextEncoder:
    """Encodes blocks of pairs or documents, without and with BPE dropout."""

    def __init__(self, tokenizers: Tokenizers, settings: EncodingSettings) -> None:
        self._tokenizers = [getattr(tokenizers, side) for side in settings.sides]
        self.id_bound = max(tokenizers.source.size, tokenizers.target.size)  # all ids are smaller
        self._max_length = settings.max_length
        alone = len(self._tokenizers) == 1
        self._empty_length = 1 + len(self._tokenizers[0].prefix_ids) if alone else 0  # ids of a document without text
        self._encode = encode_documents if settings.mark_sentences else Tokenizer.encode_all
        self._dropouts: list[BPEDropout] = []
        if settings.dropout:
            first = BPEDropout(self._tokenizers[0], rate=settings.dropout)
            others = self._tokenizers[1:]
            same = tokenizers.is_shared
            self._dropouts = [
                first, *(first if same else BPEDropout(other, rate=settings.dropout) for other in others)
            ]  # fmt: skip
        self._generators = [np.random.default_rng(number) for number in range(settings.variants)]
        self._words: list[list[list[list[list[int]]]]] = []

    def encode_block(self, block: list[Any], corpus: int, counts: EncodingCounts) -> list[Ids]:
        """Return the ids of each side of the rows that are kept, without dropout."""
        complete = counts.filter_complete(block, corpus)
        sides = [[texts[side] for _, texts in complete] for side in range(len(self._tokenizers))]
        ids = [self._encode(tokenizer, texts) for tokenizer, texts in zip(self._tokenizers, sides, strict=True)]
        kept = []
        for index, (line, texts) in enumerate(complete):
            if len(ids[0][index]) <= self._empty_length:
                counts.count_dropped(counts.empty, corpus, line)
            elif self._is_within_limit(max(len(side[index]) for side in ids)):
                kept.append(index)
                counts.num_bytes += len(texts[-1].encode())
            else:
                counts.count_dropped(counts.long, corpus, line)
        # Split into words once for all variants.
        self._words = [
            [dropout.segment_words(texts[i]) for i in kept]
            for dropout, texts in zip(self._dropouts, sides, strict=False)
        ]
        return [[side[i] for i in kept] for side in ids]

    def encode_variant(self, number: int, plain: list[Ids]) -> list[Ids]:
        """Return the last block of `encode_block`, with dropout unless a text becomes too long by it."""
        if not self._dropouts:
            return plain
        sides = []
        for dropout, words, side in zip(self._dropouts, self._words, plain, strict=True):
            sampled = [dropout.encode(text, self._generators[number]) for text in words]
            sides.append([a if self._is_within_limit(len(a)) else b for a, b in zip(sampled, side, strict=True)])
        return sides

    def _is_within_limit(self, length: int) -> bool:
        return self._max_length is None or length <= self._max_length


def _iter_blocks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    block: list[Any] = []
    characters = 0
    for row in rows:
        block.append(row)
        characters += sum(map(len, row[1:]))
        if len(block) >= BLOCK_ROWS or characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block
