"""Tokenises pairs block by block into the arrays of a store; only one block is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data.dropout import Dropout
from saccade.data.sources import Row
from saccade.data.store import SIDES, Appender
from saccade.data.tokenizer import Tokenizers

Corpora = Sequence[Callable[[], Iterator[Row]]]  # makers of rows

SMALL = 2**16  # vocabularies up to here fit two bytes a token
BLOCK_ROWS = 2_000
BLOCK_LETTERS = 1_000_000  # a block of long texts ends earlier


@dataclass(frozen=True)
class Settings:
    """What the arrays depend on beside pairs and tokenizers."""

    max_length: int
    dropout: float = 0.0
    variants: int = 1

    def without_dropout(self) -> Settings:
        return replace(self, dropout=0.0)

    def __post_init__(self) -> None:
        if not self.dropout:  # nothing to alternate between
            object.__setattr__(self, "variants", 1)


@dataclass
class Tally:
    """What is counted while pairs go by: all, and for each reason to drop one how many and the place of the first."""

    total: int = 0
    longest: int = 0
    empty: list[int] = field(default_factory=list)  # count, corpus, line
    long: list[int] = field(default_factory=list)

    def drop(self, which: list[int], corpus: int, line: int) -> None:
        which[:] = [which[0] + 1, *which[1:]] if which else [1, corpus, line]


def encode_pairs(folder: Path, corpora: Corpora, tokenizers: Tokenizers, settings: Settings) -> dict[str, Any]:
    """Writes the arrays of all corpora, one after the other; gives the meta data of the store."""
    dtype = "uint16" if max(tokenizers.source.size, tokenizers.target.size) <= SMALL else "uint32"
    tally, parts = Tally(), []
    encoder = Encoder(tokenizers, settings)
    with ExitStack() as files:
        writers = [
            [files.enter_context(Appender(folder, name=f"{side}-{number}", dtype=dtype)) for side in SIDES]
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
        "dtype": dtype, "parts": parts, "variants": settings.variants, "longest": tally.longest,
        "total": tally.total, "empty": tally.empty, "long": tally.long, "files": written,
    }  # fmt: skip


Ids = list[list[int]]


class Encoder:
    """Blocks of pairs to ids, plain and with BPE dropout."""

    def __init__(self, tokenizers: Tokenizers, settings: Settings) -> None:
        self._tokenizers = tokenizers
        self._limit = settings.max_length
        self._dropouts: list[Dropout] = []
        if settings.dropout:
            source = Dropout(tokenizers.source, rate=settings.dropout)
            target = source if tokenizers.shared else Dropout(tokenizers.target, rate=settings.dropout)
            self._dropouts = [source, target]
        self._generators = [np.random.default_rng(number) for number in range(settings.variants)]
        self._words: list[list[list[list[list[int]]]]] = []

    def plain(self, block: list[Row], corpus: int, tally: Tally) -> tuple[Ids, Ids]:
        """The ids of the pairs of a block that are kept."""
        tally.total += len(block)
        sides: list[list[str]] = [[], []]
        lines = []
        for line, source, target in block:
            if source.strip() and target.strip():
                lines.append(line)
                sides[0].append(source)
                sides[1].append(target)
            else:
                tally.drop(tally.empty, corpus, line)
        ids = self._tokenizers.source.encode_all(sides[0]), self._tokenizers.target.encode_all(sides[1])
        kept = []
        for index, line in enumerate(lines):
            if max(len(side[index]) for side in ids) <= self._limit:
                kept.append(index)
            else:
                tally.drop(tally.long, corpus, line)
        # Cut into words once, here, for all variants to come.
        self._words = [
            [dropout.words(texts[i]) for i in kept] for dropout, texts in zip(self._dropouts, sides, strict=False)
        ]
        return [ids[0][i] for i in kept], [ids[1][i] for i in kept]

    def variant(self, number: int, plain: tuple[Ids, Ids]) -> tuple[Ids, Ids]:
        """The last block in one variant: plain, or with dropout (where that does not make a text too long)."""
        if not self._dropouts:
            return plain
        sides = []
        for dropout, words, side in zip(self._dropouts, self._words, plain, strict=True):
            drawn = [dropout.encode(text, self._generators[number]) for text in words]
            sides.append([a if len(a) <= self._limit else b for a, b in zip(drawn, side, strict=True)])
        return sides[0], sides[1]


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    block: list[Row] = []
    letters = 0
    for row in rows:
        block.append(row)
        letters += len(row[1]) + len(row[2])
        if len(block) >= BLOCK_ROWS or letters >= BLOCK_LETTERS:
            yield block
            block, letters = [], 0
    if block:
        yield block
