"""Learning the pieces of a unigram tokenizer (Kudo 2018, section 3.2), the same ones every time.

Our own, as the trainer of the `tokenizers` library gives another result every time: it sums over words in the order of
a hash map that differs from run to run. Using the pieces (the best segmentation of a text) is left to the library.

W words, N letters of a word; an edge is a piece at a place in a word.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

WORDS = 50_000  # the most frequent words; rarer ones hardly move the estimate
LONGEST_WORD = 48  # letters; longer ones are cut, as whole sentences are words where no spaces are written
LONGEST_PIECE = 16
SEEDS = 20  # pieces to begin with, as a multiple of those wanted
KEPT = 0.75  # share of the pieces that survives a round
FLOOR = 1e-3  # expected count of a piece that is never used; only single letters stay so long
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of the rolling hash that stands for a piece


@dataclass(frozen=True)
class Edges:
    """Pieces at places in words: parallel arrays."""

    word: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    piece: np.ndarray

    def where(self, chosen: np.ndarray) -> Edges:
        return Edges(self.word[chosen], self.begin[chosen], self.end[chosen], self.piece[chosen])


def learn_unigram(words: Counter[str], *, alphabet: list[str], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces, the alphabet among them, with their log-probabilities, the most probable first."""
    short = _cut(words, set(alphabet))
    texts = sorted(short, key=lambda word: (-short[word], word))[:WORDS]
    counts = np.array([short[text] for text in texts], dtype=np.float64)
    pieces = alphabet + _seeds(texts, counts, min(SEEDS * size, 200_000))
    edges, inner = _edges(texts, pieces), _edges(pieces, pieces)
    inner = inner.where(inner.word != inner.piece)  # the ways to write a piece with others
    probability = np.full(len(pieces), 1 / len(pieces))
    while True:
        for _ in range(2):
            expected = _expected(edges, probability, counts, texts)
            probability = expected / expected.sum()
        if len(pieces) <= size:
            break
        loss = expected * (np.log(probability) - _best_without(inner, probability, pieces))
        loss[: len(alphabet)] = np.inf
        keep = np.sort(np.argsort(-loss, kind="stable")[: max(size, int(KEPT * len(pieces)))])
        pieces, probability = [pieces[i] for i in keep], probability[keep] / probability[keep].sum()
        edges, inner = _renumber(edges, keep, words=False), _renumber(inner, keep, words=True)
    scored = [(piece, round(float(score), 5)) for piece, score in zip(pieces, np.log(probability), strict=True)]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def _cut(words: Counter[str], alphabet: set[str]) -> Counter[str]:
    """The words of these letters only, none of them longer than LONGEST_WORD."""
    short: Counter[str] = Counter()
    for word, count in words.items():
        if alphabet.issuperset(word):
            for begin in range(0, len(word), LONGEST_WORD):
                short[word[begin : begin + LONGEST_WORD]] += count
    return short


def _windows(texts: list[str], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hash, word and begin of every run of `length` letters inside a word."""
    letters = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    word = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
    begin = np.arange(len(letters)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    start = np.flatnonzero(begin + length <= lengths[word])
    value = np.zeros(len(start), dtype=np.uint64)
    for step in range(length):  # arithmetic modulo 2^64
        value = (value + letters[start + step] + np.uint64(1)) * MULTIPLIER
        value ^= value >> np.uint64(29)
    return value, word[start], begin[start].astype(np.int32)


def _seeds(texts: list[str], counts: np.ndarray, most: int) -> list[str]:
    """The runs of letters that cover most text: frequency times length."""
    found: list[tuple[float, str]] = []
    for length in range(2, LONGEST_PIECE + 1):
        value, word, begin = _windows(texts, length)
        _, first, inverse = np.unique(value, return_index=True, return_inverse=True)
        cover = np.bincount(inverse, weights=counts[word], minlength=len(first)) * length
        best = np.argsort(-cover, kind="stable")[:most]
        best = best[cover[best] > length]  # at least twice
        places = first[best]
        found += [
            (-score, texts[w][b : b + length])
            for score, w, b in zip(cover[best], word[places], begin[places], strict=True)
        ]
    return [piece for _, piece in sorted(found)[:most]]


def _edges(texts: list[str], pieces: list[str]) -> Edges:
    """All places of the pieces in the texts."""
    parts: list[Edges] = []
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    for length in range(1, LONGEST_PIECE + 1):
        own = np.flatnonzero(lengths == length).astype(np.int32)
        if not len(own):
            continue
        keys = _windows([pieces[i] for i in own], length)[0]
        order = np.argsort(keys)
        value, word, begin = _windows(texts, length)
        place = np.minimum(np.searchsorted(keys[order], value), len(own) - 1)
        hit = keys[order][place] == value
        parts.append(Edges(word[hit], begin[hit], begin[hit] + length, own[order][place[hit]]))
    columns = zip(*((part.word, part.begin, part.end, part.piece) for part in parts), strict=True)
    return Edges(*(np.concatenate(column) for column in columns))


def _renumber(edges: Edges, keep: np.ndarray, *, words: bool) -> Edges:
    """The edges of the kept pieces (and of kept words, where the words are the pieces)."""
    size = int(max(keep.max(), edges.piece.max(initial=0), edges.word.max(initial=0) if words else 0)) + 1
    new = np.full(size, -1, dtype=np.int32)
    new[keep] = np.arange(len(keep))
    chosen = new[edges.piece] >= 0
    if words:
        chosen &= new[edges.word] >= 0
    edges = edges.where(chosen)
    return Edges(new[edges.word] if words else edges.word, edges.begin, edges.end, new[edges.piece])


def _steps(key: np.ndarray) -> list[np.ndarray]:
    """The edges of each place, one place after the other."""
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(int(key.max(initial=0)) + 2))
    return [order[a:b] for a, b in pairwise(bounds)]


def _expected(edges: Edges, probability: np.ndarray, counts: np.ndarray, texts: list[str]) -> np.ndarray:
    """How often each piece is used, over all segmentations by their probability (forward-backward)."""
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    before = np.zeros((LONGEST_WORD + 1, len(texts)))  # (N + 1, W)
    after = np.zeros_like(before)
    before[0] = 1
    after[lengths, np.arange(len(texts))] = 1
    for step in _steps(edges.end)[1:]:
        word, weight = edges.word[step], probability[edges.piece[step]]
        place = edges.end[step[0]] if len(step) else 0
        if place:
            before[place] = np.bincount(word, weight * before[edges.begin[step], word], minlength=len(texts))
    for step in reversed(_steps(edges.begin)):
        word, weight = edges.word[step], probability[edges.piece[step]]
        if len(step):
            after[edges.begin[step[0]]] += np.bincount(
                word, weight * after[edges.end[step], word], minlength=len(texts)
            )
    share = np.divide(counts, after[0], out=np.zeros_like(counts), where=after[0] > 0)
    use = before[edges.begin, edges.word] * probability[edges.piece] * after[edges.end, edges.word] * share[edges.word]
    return np.maximum(np.bincount(edges.piece, use, minlength=len(probability)), FLOOR)


def _best_without(inner: Edges, probability: np.ndarray, pieces: list[str]) -> np.ndarray:
    """The log-probability of the best way to write each piece with other pieces."""
    best = np.full((LONGEST_PIECE + 1, len(pieces)), -np.inf)
    best[0] = 0
    score = np.log(probability)
    for step in _steps(inner.end)[1:]:
        if len(step):
            word = inner.word[step]
            value = best[inner.begin[step], word] + score[inner.piece[step]]
            np.maximum.at(best[inner.end[step[0]]], word, value)
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    return best[lengths, np.arange(len(pieces))]
