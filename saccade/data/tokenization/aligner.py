"""A word aligner, estimated from training pairs: which source token explains each target token.

It is IBM Model 2 with the positions of fast_align (Dyer et al. 2013): a target token f at position j of n is explained
by the source token e at position i of m with probability

    p(i | j, m, n) p(f | e),    p(i | j, m, n) proportional to exp(-TENSION |i / m - j / n|),

or by the null word, with probability NULL_PROBABILITY p(f | null). p(f | e) is estimated by
expectation-maximization, without random numbers; TENSION is fixed, where fast_align estimates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from saccade.data.tokenization.lexicon import MAX_WORD_PAIRS, estimate_probabilities

if TYPE_CHECKING:
    from saccade.data.batching.batches import Rows

TENSION = 4.0  # as fast_align begins with
NULL_PROBABILITY = 0.08  # as in fast_align
MIN_LOG_PROB = -16.0  # log p(f | e) of pairs that did not occur


@dataclass(frozen=True)
class Aligner:
    """log p(f | e) of the pairs of tokens that occurred, sorted by their code e * target_size + f."""

    codes: np.ndarray  # int64
    log_probs: np.ndarray  # float32
    target_size: int


def build_blank_aligner() -> Aligner:
    """Build an aligner that knows no words, so that positions alone decide."""
    return Aligner(np.zeros(1, np.int64), np.full(1, MIN_LOG_PROB, np.float32), 1)


def learn_aligner(rows: Rows) -> Aligner:
    """Estimate an aligner from pairs that are evenly spaced through the data, as many as fit into MAX_WORD_PAIRS.

    Both sides end with END, which is left out.
    """
    source, target = (rows.sides.index(name) for name in ("source", "target"))
    every = np.arange(len(rows))
    size = (rows.get_lengths(every, side=source) * rows.get_lengths(every, side=target)).sum()
    chosen = every[:: max(1, -(-int(size) // MAX_WORD_PAIRS))]
    e, f, position, prior = list_candidates(*drop_end(*rows.gather(chosen, side=source)),
                                            *drop_end(*rows.gather(chosen, side=target)))  # fmt: skip
    if not len(e):
        return build_blank_aligner()
    given, explained, probabilities = estimate_probabilities(e, f, position, prior)
    target_size = int(f.max()) + 1
    codes = given.astype(np.int64) * target_size + explained
    known = (given < e.max()) & (probabilities > 0)  # without the null word, the last one
    log_probs = np.log(np.where(known, probabilities, 1.0)).clip(MIN_LOG_PROB).astype(np.float32)
    order = np.argsort(codes[known], kind="stable")
    return Aligner(codes[known][order], log_probs[known][order], target_size)


def drop_end(tokens: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Remove the last token of each row; rows are concatenated."""
    keep = np.ones(len(tokens), dtype=bool)
    keep[np.cumsum(lengths)[lengths > 0] - 1] = False
    return tokens[keep].astype(np.int64), np.maximum(lengths - 1, 0)


def list_candidates(
    source: np.ndarray, source_lengths: np.ndarray, target: np.ndarray, target_lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pair each target token with each token of its source and with the null word.

    Return source token (of the null word: the number after all others), target token, index of the target token, and
    the probability of the positions.
    """
    m = np.repeat(source_lengths, target_lengths)  # of each target token: the length of its source
    n = np.repeat(target_lengths, target_lengths)
    j = count_from_zero(target_lengths)
    index = np.repeat(np.arange(len(target)), m + 1)
    i = count_from_zero(m + 1)  # the last one is the null word
    is_null = i == m[index]
    first = np.repeat(np.cumsum(source_lengths) - source_lengths, target_lengths)
    null_word = int(source.max(initial=0)) + 1
    padded = np.append(source, null_word)  # so that every index is valid
    e = np.where(is_null, null_word, padded[np.minimum(first[index] + i, len(source))])
    near = np.exp(-TENSION * np.abs((i + 1) / np.maximum(m, 1)[index] - (j + 1)[index] / n[index]))
    near = np.where(is_null, 0.0, near)
    total = np.maximum(np.bincount(index, near, minlength=len(target)), np.finfo(float).tiny)
    prior = np.where(is_null, NULL_PROBABILITY, (1 - NULL_PROBABILITY) * near / total[index])
    return e, target[index], index, prior


def count_from_zero(lengths: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2 ... for each length, concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
