"""Align the words of a text with the tokens of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from saccade.data.tokenization.tokenizer import Tokenizer

WORD = re.compile(r"\S+")


class WordEncoding(NamedTuple):
    """The ids of a text with END, and the index of the first token of each word."""

    ids: list[int]
    first_tokens: list[int]


def encode_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[WordEncoding]:
    """Encode whole texts and find the first token of each word; words are separated by spaces."""
    encoded = []
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, with_offsets=True), strict=True):
        ids = tokenizer.to_model_ids(encoding.ids)
        shift = len(ids) - 1 - len(encoding.ids)  # number of prefix tokens
        first_tokens = find_first_tokens(text, [end for _, end in encoding.offsets])
        encoded.append(WordEncoding(ids, [min(token + shift, len(ids) - 1) for token in first_tokens]))
    return encoded


def find_first_tokens(text: str, ends: Sequence[int]) -> list[int]:
    """Return for each word the first token that ends behind its first letter; it may include the space before it.

    `ends` are the end offsets of the tokens in the text.
    """
    first_tokens, token = [], 0
    for word in WORD.finditer(text):
        while token < len(ends) and ends[token] <= word.start():
            token += 1
        first_tokens.append(token)
    return first_tokens
