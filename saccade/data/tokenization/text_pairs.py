"""Encode a text, or a pair of texts, as one sequence of ids: prefix A END, or prefix A END B END.

A tokenizer may put more than one END between two texts (RoBERTa), or suffix tokens behind the last END (XLNet).
"""

from __future__ import annotations

from collections.abc import Sequence

from saccade.data.tokenization.tokenizer import END, Tokenizer

Texts = tuple[str, ...]  # one or two
SEPARATOR = "\t"  # between two texts in one line


def encode_texts(tokenizer: Tokenizer, rows: Sequence[Texts], *, max_length: int | None = None) -> list[list[int]]:
    """Encode texts or pairs; with `max_length`, tokens are removed from the end of the longer text until they fit."""
    flat = tokenizer.encode_all([text for row in rows for text in row])
    prefix, separators, suffix = tokenizer.prefix_ids, [END] * count_separators(tokenizer), tokenizer.suffix_ids
    encoded, start = [], 0
    for row in rows:
        parts = [ids[len(prefix) : -1] for ids in flat[start : start + len(row)]]
        start += len(row)
        if max_length is not None:
            num_special = len(prefix) + 1 + len(suffix) + len(separators) * (len(parts) - 1)
            parts = truncate_longest(parts, max_length - num_special)
        first, *rest = parts
        encoded.append([*prefix, *first, *(token for part in rest for token in (*separators, *part)), END, *suffix])
    return encoded


def count_separators(tokenizer: Tokenizer) -> int:
    """Count the END tokens that the rules of the tokenizer put between two texts; 1 if it has no rules."""
    end = tokenizer.library_ids[END]
    return max(1, tokenizer.backend.encode("", "").ids.count(end) - 1)


def truncate_longest(parts: list[list[int]], max_length: int) -> list[list[int]]:
    """Truncate the longest part, again and again, until all parts together have at most `max_length` ids."""
    lengths = [len(part) for part in parts]
    while sum(lengths) > max(max_length, 0):
        lengths[lengths.index(max(lengths))] -= 1
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


def join_texts(texts: Sequence[str]) -> str:
    """Join texts by tabs; tabs inside of a text become spaces."""
    return SEPARATOR.join(text.replace(SEPARATOR, " ") for text in texts)


def split_texts(line: str) -> Texts:
    """Split a line at tabs into its texts."""
    return tuple(line.split(SEPARATOR))
