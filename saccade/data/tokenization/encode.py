"""Tokenises pairs block by block into the arrays of a store; only one block is in memory at a time."""

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

from saccade.data.tokenization.bpe_dropout import Dropout
from saccade.data.tokenization.labels import NONE, Labels
from saccade.data.tokenization.text_pairs import encode_texts, separated
from saccade.data.tokenization.tokenizer import END, Tokenizer, Tokenizers
from saccade.data.tokenization.words import encode_words

# ---- Documents as sentences: lines, and inside of lines what ends with a full stop or the like.

# Behind a sentence: its last mark, with the quotes and brackets that it closes, before a space and no small letter;
# or before a new line.
BEHIND = re.compile(r"""(?:[.!?…]["”’')\]]*(?=\s+[^\sa-zß-öø-ÿ])|[。！？](?=.)|(?<=\S)(?=\n))""")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, which together are the text; spaces stand before a sentence."""
    bounds = [0, *(found.end() for found in BEHIND.finditer(text)), len(text)]
    parts = [text[first:last] for first, last in pairwise(bounds)]
    return [part for part in parts if part.strip()]


def puts_space(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer puts a space before every text, so that a sentence should not bring its own."""
    rules = json.dumps([tokenizer.settings["normalizer"], tokenizer.settings["pre_tokenizer"]])
    return "Prepend" in rules or "Metaspace" in rules


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, with END behind each of its sentences."""
    sentences = [split_sentences(text) for text in texts]
    if puts_space(tokenizer):
        sentences = [[sentence.lstrip() for sentence in found] for found in sentences]
    rows = iter(tokenizer.encode_all([sentence for found in sentences for sentence in found]))
    before = len(tokenizer.begin)
    return [[*tokenizer.begin, *(id for _ in found for id in next(rows)[before:])] for found in sentences]


# ---- What is counted while texts are tokenised.


@dataclass
class Tally:
    """What is counted while pairs go by: all, and for each reason to drop one how many and the place of the first."""

    total: int = 0
    longest: int = 0
    bytes: int = 0
    empty: list[int] = field(default_factory=list)  # count, corpus, line
    long: list[int] = field(default_factory=list)

    def full(self, block: Iterable[Any], corpus: int) -> list[tuple[int, list[str]]]:
        """The line and the texts of each row that lacks none; all rows are counted."""
        rows = []
        for line, *texts in block:
            self.total += 1
            if all(text.strip() for text in texts):
                rows.append((line, texts))
            else:
                self.drop(self.empty, corpus, line)
        return rows

    def drop(self, which: list[int], corpus: int, line: int) -> None:
        which[:] = [which[0] + 1, *which[1:]] if which else [1, corpus, line]


# ---- Texts with labels as ids: those of a text or a pair, and those of its class, number, or words.


Ids = list[list[int]]


def encode_lines(tokenizers: Tokenizers, lines: Sequence[str], *, cut: int = 0) -> Ids:
    """What a model reads of each line: a text, or a pair of texts with labels; cut to a length where one is given."""
    labels = tokenizers.labels
    if labels is None or labels.per_word:
        return tokenizers.source.encode_all(lines)
    return encode_texts(tokenizers.source, [separated(line) for line in lines], limit=cut or None)


class LabelledEncoder:
    """Blocks of rows to ids. What is too long is dropped and counted, or cut where `cut` says so."""

    def __init__(self, tokenizer: Tokenizer, labels: Labels, *, limit: int | None, cut: bool) -> None:
        self._tokenizer, self._labels = tokenizer, labels
        self._limit, self._cut = limit, cut

    @property
    def largest(self) -> int:
        """No id is as large."""
        return 2**32 if self._labels.is_number else max(self._tokenizer.size, len(self._labels.names) + 1)

    def plain(self, block: list[Any], corpus: int, tally: Tally) -> list[Ids]:
        """The ids of the rows of a block that are kept: of what is read, and of its labels."""
        full = tally.full(block, corpus)
        read, labels = self._tagged(full) if self._labels.per_word else self._labelled(full)
        kept = []
        for index, (line, texts) in enumerate(full):
            if self._limit is None or len(read[index]) <= self._limit:
                kept.append(index)
                tally.bytes += sum(len(text.encode()) for text in texts[:-1])
            else:
                tally.drop(tally.long, corpus, line)
        return [[side[i] for i in kept] for side in (read, labels)]

    def variant(self, number: int, plain: list[Ids]) -> list[Ids]:
        """There is only one."""
        return plain

    def _labelled(self, rows: list[Any]) -> tuple[Ids, Ids]:
        """One text or two, and their label."""
        limit = self._limit if self._cut else None
        read = encode_texts(self._tokenizer, [tuple(texts[:-1]) for _, texts in rows], limit=limit)
        return read, [self._labels.encode(texts[-1]) for _, texts in rows]

    def _tagged(self, rows: list[Any]) -> tuple[Ids, Ids]:
        """Words, and an id of a tag for each piece: none but at the first piece of a word."""
        read, labels = [], []
        for (_, texts), (ids, places) in zip(
            rows, encode_words(self._tokenizer, [texts[0] for _, texts in rows]), strict=True
        ):
            tags = [NONE] * len(ids)
            for place, tag in zip(places, self._labels.encode(texts[-1]), strict=True):
                tags[place] = tags[place] or tag
            if self._cut and self._limit is not None and len(ids) > self._limit:
                ids, tags = [*ids[: self._limit - 1], END], [*tags[: self._limit - 1], NONE]
            read.append(ids)
            labels.append(tags)
        return read, labels


# ----


Corpora = Sequence[Callable[[], Iterator[Any]]]  # makers of rows: a line number, and a text for each side

SMALL = 2**16  # vocabularies up to here fit two bytes a token
BLOCK_ROWS = 2_000
BLOCK_LETTERS = 1_000_000  # a block of long texts ends earlier


@dataclass(frozen=True)
class Settings:
    """What the arrays depend on beside pairs and tokenizers."""

    max_length: int | None  # none: whatever length
    dropout: float = 0.0
    variants: int = 1
    sides: tuple[str, ...] = ("source", "target")
    by_sentence: bool = False  # END behind every sentence of a document
    cut: bool = False  # what has a label and is too long is cut, not dropped

    def without_dropout(self) -> Settings:
        return replace(self, dropout=0.0)

    def __post_init__(self) -> None:
        if not self.dropout:  # nothing to alternate between
            object.__setattr__(self, "variants", 1)


def encode_pairs(
    folder: Path, corpora: Corpora, tokenizers: Tokenizers, settings: Settings, encoder: Any = None
) -> dict[str, Any]:
    """Writes the arrays of all corpora, one after the other; gives the meta data of the store.

    Rows are pairs, or single texts where there is one side. `encoder` is that of rows that are not only texts.
    """
    from saccade.data.store.arrays import Appender  # which imports torch

    encoder = encoder or encoder_for(tokenizers, settings)
    dtype = "uint16" if encoder.largest <= SMALL else "uint32"
    tally, parts = Tally(), []
    with ExitStack() as files:
        writers = [
            [files.enter_context(Appender(folder, name=f"{side}-{number}", dtype=dtype)) for side in settings.sides]
            for number in range(settings.variants)
        ]
        for corpus, rows in enumerate(corpora):
            kept = 0
            for block in _blocks(rows()):
                plain = encoder.plain(block, corpus, tally)
                kept += len(plain[0])
                for number, appenders in enumerate(writers):
                    sides = encoder.variant(number, plain)
                    for appender, side in zip(appenders, sides, strict=True):
                        appender.add(side)
                    tally.longest = max([tally.longest, *map(len, chain(*sides))])
            parts.append(kept)
    written = {name: found for appender in chain(*writers) for name, found in appender.files().items()}
    return {
        "dtype": dtype, "sides": settings.sides, "parts": parts, "variants": settings.variants,
        "longest": tally.longest, "bytes": tally.bytes, "total": tally.total, "empty": tally.empty,
        "long": tally.long, "files": written,
    }  # fmt: skip


def encoder_for(tokenizers: Tokenizers, settings: Settings) -> Encoder | LabelledEncoder:
    if tokenizers.labels is None:
        return Encoder(tokenizers, settings)
    return LabelledEncoder(tokenizers.source, tokenizers.labels, limit=settings.max_length, cut=settings.cut)


class Encoder:
    """Blocks of pairs or texts to ids, plain and with BPE dropout."""

    def __init__(self, tokenizers: Tokenizers, settings: Settings) -> None:
        self._tokenizers = [getattr(tokenizers, side) for side in settings.sides]
        self.largest = max(tokenizers.source.size, tokenizers.target.size)  # no id is as large
        self._limit = settings.max_length
        alone = len(self._tokenizers) == 1
        self._bare = 1 + len(self._tokenizers[0].begin) if alone else 0  # ids of a document of which no piece is left
        self._encode = encode_documents if settings.by_sentence else Tokenizer.encode_all
        self._dropouts: list[Dropout] = []
        if settings.dropout:
            first = Dropout(self._tokenizers[0], rate=settings.dropout)
            others = self._tokenizers[1:]
            self._dropouts = [
                first, *(first if tokenizers.shared else Dropout(other, rate=settings.dropout) for other in others)
            ]  # fmt: skip
        self._generators = [np.random.default_rng(number) for number in range(settings.variants)]
        self._words: list[list[list[list[list[int]]]]] = []

    def plain(self, block: list[Any], corpus: int, tally: Tally) -> list[Ids]:
        """The ids of the rows of a block that are kept, side by side."""
        full = tally.full(block, corpus)
        sides = [[texts[side] for _, texts in full] for side in range(len(self._tokenizers))]
        ids = [self._encode(tokenizer, texts) for tokenizer, texts in zip(self._tokenizers, sides, strict=True)]
        kept = []
        for index, (line, texts) in enumerate(full):
            if len(ids[0][index]) <= self._bare:
                tally.drop(tally.empty, corpus, line)
            elif self._fits(max(len(side[index]) for side in ids)):
                kept.append(index)
                tally.bytes += len(texts[-1].encode())
            else:
                tally.drop(tally.long, corpus, line)
        # Cut into words once, here, for all variants to come.
        self._words = [
            [dropout.words(texts[i]) for i in kept] for dropout, texts in zip(self._dropouts, sides, strict=False)
        ]
        return [[side[i] for i in kept] for side in ids]

    def variant(self, number: int, plain: list[Ids]) -> list[Ids]:
        """The last block in one variant: plain, or with dropout (where that does not make a text too long)."""
        if not self._dropouts:
            return plain
        sides = []
        for dropout, words, side in zip(self._dropouts, self._words, plain, strict=True):
            drawn = [dropout.encode(text, self._generators[number]) for text in words]
            sides.append([a if self._fits(len(a)) else b for a, b in zip(drawn, side, strict=True)])
        return sides

    def _fits(self, length: int) -> bool:
        return self._limit is None or length <= self._limit


def _blocks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    block: list[Any] = []
    letters = 0
    for row in rows:
        block.append(row)
        letters += sum(map(len, row[1:]))
        if len(block) >= BLOCK_ROWS or letters >= BLOCK_LETTERS:
            yield block
            block, letters = [], 0
    if block:
        yield block
