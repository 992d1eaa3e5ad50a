"""Documents as sentences: lines, and inside of lines what ends with a full stop or the like."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from saccade.data.tokenizer import Tokenizer

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
