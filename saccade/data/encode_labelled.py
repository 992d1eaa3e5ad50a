"""Texts with labels as ids: those of a text or a pair, and those of its class, its number, or the tags of its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saccade.data.labels import NONE, Labels
from saccade.data.pairs_of_texts import encode_texts, separated
from saccade.data.tally import Tally
from saccade.data.tokenizer import END, Tokenizer, Tokenizers
from saccade.data.words import encode_words

Ids = list[list[int]]


def encode_lines(tokenizers: Tokenizers, lines: Sequence[str], *, cut: int = 0) -> Ids:
    """What a model reads of each line: a text, or a pair of texts with labels; cut to a length where one is given."""
    labels = tokenizers.labels
    if labels is None or labels.kind == "tags":
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
        return 2**32 if self._labels.kind == "number" else max(self._tokenizer.size, len(self._labels.names) + 1)

    def plain(self, block: list[Any], corpus: int, tally: Tally) -> list[Ids]:
        """The ids of the rows of a block that are kept: of what is read, and of its labels."""
        full = tally.full(block, corpus)
        read, labels = self._tagged(full) if self._labels.kind == "tags" else self._labelled(full)
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
