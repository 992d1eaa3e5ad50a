"""BPE dropout (Provilkov et al. 2020), from a seed.

The dropout of the `tokenizers` library draws from a generator that cannot be seeded, so a run could not be repeated.
Here every word gets a few segmentations, drawn from a generator seeded with the word itself, and every occurrence of
the word takes one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError

SAMPLES = 16  # segmentations of a word to choose from
LONGEST = 64  # letters; longer words (numbers, links) keep their plain segmentation
REMEMBERED = 200_000  # words whose segmentations are kept; then all are forgotten, and drawn again, the same


class Dropout:
    """Encodes texts with merges left out at random."""

    def __init__(self, tokenizer: Tokenizer, *, rate: float) -> None:
        model = tokenizer.settings["model"]
        marks = [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")]
        if model["type"] != "BPE" or not model["merges"] or any(marks):
            raise SaccadeError('tokenizer.dropout is for kind = "bpe" only; set tokenizer.dropout = 0')
        pairs = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in model["merges"]]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._vocabulary: dict[str, int] = model["vocab"]
        self._tokenizer = tokenizer
        self._rate = rate
        self._known: dict[str, list[list[int]]] = {}

    def words(self, text: str) -> list[list[list[int]]]:
        """The segmentations of each word of a text."""
        core = self._tokenizer.core
        if core.normalizer:
            text = core.normalizer.normalize_str(text)
        pieces = core.pre_tokenizer.pre_tokenize_str(text) if core.pre_tokenizer else [(text, None)]
        return [self._segmentations(word) for word, _ in pieces]

    def encode(self, words: Sequence[list[list[int]]], generator: np.random.Generator) -> list[int]:
        """One choice for every word, END last."""
        chosen = generator.integers(0, SAMPLES, size=len(words)).tolist()
        theirs = [number for word, choice in zip(words, chosen, strict=True) for number in word[choice % len(word)]]
        return self._tokenizer.number(theirs)

    def _segmentations(self, word: str) -> list[list[int]]:
        if word not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[word] = self._sample(word)
        return self._known[word]

    def _sample(self, word: str) -> list[list[int]]:
        if len(word) > LONGEST or not all(letter in self._vocabulary for letter in word):
            return [[token.id for token in self._tokenizer.core.model.tokenize(word)]]
        if len(word) == 1 or not self._rate:
            return [self._numbers(self._merge(word, lambda: 1.0))]
        draw = random.Random(word).random
        return [self._numbers(self._merge(word, draw)) for _ in range(SAMPLES)]

    def _numbers(self, pieces: list[str]) -> list[int]:
        return [self._vocabulary[piece] for piece in pieces]

    def _merge(self, word: str, draw: Callable[[], float]) -> list[str]:
        """Merges the earliest-learned pair that is not dropped, until none is left; each time all draw anew."""
        pieces, ranks, rate = list(word), self._ranks, self._rate
        while len(pieces) > 1:
            best, place = len(ranks), -1
            for i in range(len(pieces) - 1):
                rank = ranks.get((pieces[i], pieces[i + 1]), best)
                if rank < best and draw() >= rate:
                    best, place = rank, i
            if place < 0:
                break
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        return pieces
