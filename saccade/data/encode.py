"""Tokenises pairs block by block into the arrays of a store; only one block is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.dropout import Dropout
from saccade.data.encode_labelled import LabelledEncoder
from saccade.data.splitting import encode_documents
from saccade.data.store import SIDES, Appender
from saccade.data.tally import Tally
from saccade.data.tokenizer import Tokenizer, Tokenizers

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
    sides: tuple[str, ...] = SIDES
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


Ids = list[list[int]]


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
