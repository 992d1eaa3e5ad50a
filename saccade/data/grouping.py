"""Which pieces of a text make up one word."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence

Decode = Callable[[Sequence[int]], str]


def group_words(ids: Sequence[int], decode: Decode, *, alone: Collection[int]) -> list[list[int]]:
    """The places of ids, word by word: what no space stands between, without the punctuation around it.

    How ids are written is asked of `decode`, so that it works for every kind of vocabulary. Those of `alone` are words
    of their own.
    """
    groups: list[list[int]] = []
    for at, number in enumerate(ids):
        before = ids[at - 1 : at]
        apart = not before or before[0] in alone or number in alone
        if apart or not _goes_on(decode(before), decode([*before, number])):
            groups.append([at])
        else:
            groups[-1].append(at)
    texts = [decode([number]).strip() for number in ids]
    return [part for group in groups for part in _split_ends(group, texts)]


def _goes_on(first: str, both: str) -> bool:
    """Whether the second of two pieces belongs to the word of the first, given the first and both as text."""
    added = both[len(first) :] if both.startswith(first) else ""  # bytes of one character are read together
    if added[:1].isspace():
        return False
    return not first.strip() or not first[-1].isspace()  # spaces alone belong to the word behind them


def _split_ends(group: list[int], texts: Sequence[str]) -> Iterator[list[int]]:
    """A word, before it the signs at its beginning and behind it those at its end."""
    letters = [at for at in group if texts[at] and not _is_punctuation(texts[at])] or group
    first, last = letters[0], letters[-1]
    while first > group[0] and not texts[first - 1]:  # the space before a word
        first -= 1
    parts = (range(group[0], first), range(first, last + 1), range(last + 1, group[-1] + 1))
    yield from (list(part) for part in parts if part)


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(sign).startswith("P") for sign in text)
