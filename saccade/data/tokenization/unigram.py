"""Train the vocabulary of a unigram tokenizer (Kudo 2018, section 3.2), deterministically.

The trainer of the `tokenizers` library gives another result each time, since it sums over words in the order of a hash
map. Encoding with the vocabulary (the best segmentation of a text) is left to the library.

W words, N characters of a word; an edge is an occurrence of a token in a word.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MAX_WORDS = 50_000  # the most frequent ones; rarer words hardly change the estimate
MAX_WORD_LENGTH = 48  # characters; longer ones are split, such as sentences of languages without spaces
MAX_TOKEN_LENGTH = 16
SEED_FACTOR = 20  # initial number of tokens, as a multiple of the final one
KEEP_SHARE = 0.75  # share of the tokens that is kept in each round
MIN_EXPECTED_COUNT = 1e-3  # of tokens that are never used, which are single characters
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of the rolling hash that identifies a token


@dataclass(frozen=True)
class Edges:
    """Occurrences of tokens in words, as parallel arrays."""

    word: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    token: np.ndarray

    def select(self, chosen: np.ndarray) -> Edges:
        return Edges(self.word[chosen], self.begin[chosen], self.end[chosen], self.token[chosen])


def train_unigram(words: Counter[str], *, alphabet: list[str], size: int) -> list[tuple[str, float]]:
    """Return at most `size` tokens, with the alphabet, and their log-probabilities, the most probable first."""
    short = _split_long_words(words, set(alphabet))
    texts = sorted(short, key=lambda word: (-short[word], word))[:MAX_WORDS]
    counts = np.array([short[text] for text in texts], dtype=np.float64)
    tokens = alphabet + _find_seed_tokens(texts, counts, min(SEED_FACTOR * size, 200_000))
    edges, inner = _find_edges(texts, tokens), _find_edges(tokens, tokens)
    inner = inner.select(inner.word != inner.token)  # segmentations of a token into other tokens
    probability = np.full(len(tokens), 1 / len(tokens))
    while True:
        for _ in range(2):
            expected = _compute_expected_counts(edges, probability, counts, texts)
            probability = expected / expected.sum()
        if len(tokens) <= size:
            break
        loss = expected * (np.log(probability) - _score_alternatives(inner, probability, tokens))
        loss[: len(alphabet)] = np.inf
        keep = np.sort(np.argsort(-loss, kind="stable")[: max(size, int(KEEP_SHARE * len(tokens)))])
        tokens, probability = [tokens[i] for i in keep], probability[keep] / probability[keep].sum()
        edges, inner = _renumber(edges, keep, words=False), _renumber(inner, keep, words=True)
    scored = [(token, round(float(score), 5)) for token, score in zip(tokens, np.log(probability), strict=True)]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def _split_long_words(words: Counter[str], alphabet: set[str]) -> Counter[str]:
    """Keep the words of these characters only, split into parts of at most MAX_WORD_LENGTH."""
    short: Counter[str] = Counter()
    for word, count in words.items():
        if alphabet.issuperset(word):
            for begin in range(0, len(word), MAX_WORD_LENGTH):
                short[word[begin : begin + MAX_WORD_LENGTH]] += count
    return short


def _hash_ngrams(texts: list[str], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hash, word and offset of every n-gram of `length` characters inside of a word."""
    characters = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    word = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
    begin = np.arange(len(characters)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    start = np.flatnonzero(begin + length <= lengths[word])
    value = np.zeros(len(start), dtype=np.uint64)
    for step in range(length):  # arithmetic modulo 2^64
        value = (value + characters[start + step] + np.uint64(1)) * HASH_MULTIPLIER
        value ^= value >> np.uint64(29)
    return value, word[start], begin[start].astype(np.int32)


def _find_seed_tokens(texts: list[str], counts: np.ndarray, most: int) -> list[str]:
    """Return the n-grams that cover most text: frequency times length."""
    found: list[tuple[float, str]] = []
    for length in range(2, MAX_TOKEN_LENGTH + 1):
        value, word, begin = _hash_ngrams(texts, length)
        _, first, inverse = np.unique(value, return_index=True, return_inverse=True)
        cover = np.bincount(inverse, weights=counts[word], minlength=len(first)) * length
        best = np.argsort(-cover, kind="stable")[:most]
        best = best[cover[best] > length]  # at least twice
        places = first[best]
        found += [
            (-score, texts[w][b : b + length])
            for score, w, b in zip(cover[best], word[places], begin[places], strict=True)
        ]
    return [token for _, token in sorted(found)[:most]]


def _find_edges(texts: list[str], tokens: list[str]) -> Edges:
    """Find all occurrences of the tokens in the texts."""
    parts: list[Edges] = []
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    for length in range(1, MAX_TOKEN_LENGTH + 1):
        own = np.flatnonzero(lengths == length).astype(np.int32)
        if not len(own):
            continue
        keys = _hash_ngrams([tokens[i] for i in own], length)[0]
        order = np.argsort(keys)
        value, word, begin = _hash_ngrams(texts, length)
        place = np.minimum(np.searchsorted(keys[order], value), len(own) - 1)
        hit = keys[order][place] == value
        parts.append(Edges(word[hit], begin[hit], begin[hit] + length, own[order][place[hit]]))
    columns = zip(*((part.word, part.begin, part.end, part.token) for part in parts), strict=True)
    return Edges(*(np.concatenate(column) for column in columns))


def _renumber(edges: Edges, keep: np.ndarray, *, words: bool) -> Edges:
    """Keep the edges of some tokens, and renumber these (also the words, if these are the tokens)."""
    size = int(max(keep.max(), edges.token.max(initial=0), edges.word.max(initial=0) if words else 0)) + 1
    new = np.full(size, -1, dtype=np.int32)
    new[keep] = np.arange(len(keep))
    chosen = new[edges.token] >= 0
    if words:
        chosen &= new[edges.word] >= 0
    edges = edges.select(chosen)
    return Edges(new[edges.word] if words else edges.word, edges.begin, edges.end, new[edges.token])


def _group_by_position(key: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the edges at each position, for all positions in order."""
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(int(key.max(initial=0)) + 2))
    return [order[a:b] for a, b in pairwise(bounds)]


def _compute_expected_counts(edges: Edges, probability: np.ndarray, counts: np.ndarray, texts: list[str]) -> np.ndarray:
    """Return the expected count of each token over all segmentations (forward-backward algorithm)."""
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    before = np.zeros((MAX_WORD_LENGTH + 1, len(texts)))  # (N + 1, W)
    after = np.zeros_like(before)
    before[0] = 1
    after[lengths, np.arange(len(texts))] = 1
    for step in _group_by_position(edges.end)[1:]:
        word, weight = edges.word[step], probability[edges.token[step]]
        place = edges.end[step[0]] if len(step) else 0
        if place:
            before[place] = np.bincount(word, weight * before[edges.begin[step], word], minlength=len(texts))
    for step in reversed(_group_by_position(edges.begin)):
        word, weight = edges.word[step], probability[edges.token[step]]
        if len(step):
            after[edges.begin[step[0]]] += np.bincount(
                word, weight * after[edges.end[step], word], minlength=len(texts)
            )
    share = np.divide(counts, after[0], out=np.zeros_like(counts), where=after[0] > 0)
    use = before[edges.begin, edges.word] * probability[edges.token] * after[edges.end, edges.word] * share[edges.word]
    return np.maximum(np.bincount(edges.token, use, minlength=len(probability)), MIN_EXPECTED_COUNT)


def _score_alternatives(inner: Edges, probability: np.ndarray, tokens: list[str]) -> np.ndarray:
    """Return the log-probability of the best segmentation of each token into other tokens."""
    best = np.full((MAX_TOKEN_LENGTH + 1, len(tokens)), -np.inf)
    best[0] = 0
    score = np.log(probability)
    for step in _group_by_position(inner.end)[1:]:
        if len(step):
            word = inner.word[step]
            value = best[inner.begin[step], word] + score[inner.token[step]]
            np.maximum.at(best[inner.end[step[0]]], word, value)
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    return best[lengths, np.arange(len(tokens))]
