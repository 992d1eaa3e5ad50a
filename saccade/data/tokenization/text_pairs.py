"""One text, or two that belong together, as one row of ids: `begin` A END, or `begin` A END B END.

A tokenizer may put more than one END between them, as that of RoBERTa does, or another piece behind all (XLNet).
"""

from __future__ import annotations

from collections.abc import Sequence

from saccade.data.tokenization.tokenizer import END, Tokenizer

Texts = tuple[str, ...]  # one, or two
SEPARATOR = "\t"  # between the two where both stand in one line


def encode_texts(tokenizer: Tokenizer, rows: Sequence[Texts], *, limit: int | None = None) -> list[list[int]]:
    """The ids of each text or pair; with a limit, cut at the ends until they fit, of a pair the longer one first."""
    flat = tokenizer.encode_all([text for row in rows for text in row])
    begin, between, made, at = list(tokenizer.begin), [END] * separators(tokenizer), [], 0
    for row in rows:
        parts = [ids[len(begin) : -1] for ids in flat[at : at + len(row)]]
        at += len(row)
        if limit is not None:
            parts = shortened(parts, limit - len(begin) - 1 - len(tokenizer.after) - len(between) * (len(parts) - 1))
        first, *rest = parts
        made.append([*begin, *first, *(number for part in rest for number in (*between, *part)), END, *tokenizer.after])
    return made


def separators(tokenizer: Tokenizer) -> int:
    """How many END stand between two texts, by the rules of the tokenizer's file; one where it has none."""
    end = tokenizer.order[END]
    return max(1, tokenizer.core.encode("", "").ids.count(end) - 1)


def shortened(parts: list[list[int]], room: int) -> list[list[int]]:
    """So many ids in all, taken from the end of whichever part is the longest."""
    lengths = [len(part) for part in parts]
    while sum(lengths) > max(room, 0):
        lengths[lengths.index(max(lengths))] -= 1
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


def joined(texts: Sequence[str]) -> str:
    """As one line; a tab inside of a text is a space there."""
    return SEPARATOR.join(text.replace(SEPARATOR, " ") for text in texts)


def separated(line: str) -> Texts:
    """The texts of a line: two where a tab stands between them."""
    return tuple(line.split(SEPARATOR))
