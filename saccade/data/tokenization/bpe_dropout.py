"""Reproducible BPE dropout (Provilkov et al. 2020).

The dropout of the `tokenizers` library uses a generator that cannot be seeded, so a run could not be repeated. Here a
few segmentations of each word are sampled from a generator seeded with the word itself, and each occurrence of the word
uses one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError

SEGMENTATIONS_PER_WORD = 16  # to choose from
MAX_WORD_LENGTH = 64  # characters; longer words (numbers, links) keep their plain segmentation
MAX_CACHED_WORDS = 200_000  # words with cached segmentations; then the cache is cleared


class BPEDropout:
    """Encodes texts while skipping merges at random."""

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
        self._segmentation_cache: dict[str, list[list[int]]] = {}

    def segment_words(self, text: str) -> list[list[list[int]]]:
        """Split a text into words; return the sampled segmentations of each word, as library ids."""
        backend = self._tokenizer.backend
        if backend.normalizer:
            text = backend.normalizer.normalize_str(text)
        words = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else [(text, None)]
        return [self._get_segmentations(word) for word, _ in words]

    def encode(self, words: Sequence[list[list[int]]], generator: np.random.Generator) -> list[int]:
        """Choose a segmentation for each word; return the ids of the text with END."""
        chosen = generator.integers(0, SEGMENTATIONS_PER_WORD, size=len(words)).tolist()
        library_ids = [token for word, choice in zip(words, chosen, strict=True) for token in word[choice % len(word)]]
        return self._tokenizer.to_model_ids(library_ids)

    def _get_segmentations(self, word: str) -> list[list[int]]:
        if word not in self._segmentation_cache:
            if len(self._segmentation_cache) >= MAX_CACHED_WORDS:
                self._segmentation_cache.clear()
            self._segmentation_cache[word] = self._sample_segmentations(word)
        return self._segmentation_cache[word]

    def _sample_segmentations(self, word: str) -> list[list[int]]:
        if len(word) > MAX_WORD_LENGTH or not all(letter in self._vocabulary for letter in word):
            return [[token.id for token in self._tokenizer.backend.model.tokenize(word)]]
        if len(word) == 1 or not self._rate:
            return [self._to_ids(self._merge(word, lambda: 1.0))]
        sample = random.Random(word).random
        return [self._to_ids(self._merge(word, sample)) for _ in range(SEGMENTATIONS_PER_WORD)]

    def _to_ids(self, tokens: list[str]) -> list[int]:
        return [self._vocabulary[token] for token in tokens]

    def _merge(self, word: str, sample: Callable[[], float]) -> list[str]:
        """Merge the pair of lowest rank that is not dropped, until none is left; sample all pairs anew each time."""
        tokens, ranks, rate = list(word), self._ranks, self._rate
        while len(tokens) > 1:
            best, index = len(ranks), -1
            for i in range(len(tokens) - 1):
                rank = ranks.get((tokens[i], tokens[i + 1]), best)
                if rank < best and sample() >= rate:
                    best, index = rank, i
            if index < 0:
                break
            tokens[index : index + 2] = [tokens[index] + tokens[index + 1]]
        return tokens
