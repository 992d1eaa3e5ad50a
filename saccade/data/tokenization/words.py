"""Words of a text and the pieces that a tokenizer makes of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from saccade.data.tokenization.tokenizer import Tokenizer

WORD = re.compile(r"\S+")


class Worded(NamedTuple):
    """A text as ids, END last, and where the first piece of each of its words stands."""

    ids: list[int]
    places: list[int]


def encode_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Worded]:
    """Tokenises whole texts, as everywhere, and finds their words again, which stand between spaces."""
    found = []
    for text, encoding in zip(texts, tokenizer.encodings(texts, places=True), strict=True):
        ids = tokenizer.number(encoding.ids)
        shift = len(ids) - 1 - len(encoding.ids)  # of what begins every text
        places = first_pieces(text, [end for _, end in encoding.offsets])
        found.append(Worded(ids, [min(place + shift, len(ids) - 1) for place in places]))
    return found


def first_pieces(text: str, ends: Sequence[int]) -> list[int]:
    """For each word the first piece that ends behind the word's first letter: a space before it may be part of that."""
    places, at = [], 0
    for word in WORD.finditer(text):
        while at < len(ends) and ends[at] <= word.start():
            at += 1
        places.append(at)
    return places
