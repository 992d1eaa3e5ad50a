"""The word aligner: candidates and probabilities compared with loops, and words that it must align."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from saccade.data.batching.batches import Rows
from saccade.data.tokenization import aligner
from saccade.data.tokenization.lexicon import EM_ITERATIONS

END = 2


class Pairs(Rows):
    """Rows of given token ids."""

    sides = ("source", "target")

    def __init__(self, pairs):
        self.pairs, self.corpus_sizes = pairs, [len(pairs)]

    def get_lengths(self, rows, *, side, variant=0):
        return np.array([len(self.pairs[row][side]) for row in rows])

    def gather(self, rows, *, side, variant=0):
        chosen = [np.array(self.pairs[row][side]) for row in rows]
        return np.concatenate(chosen), np.array([len(row) for row in chosen])


PAIRS = [
    ([5, 6, 7, END], [11, 12, END]),
    ([6, END], [12, 12, 13, END]),
    ([7, 5, 9, END], [13, 11, 14, 11, END]),
    ([9, END], [END]),
    ([5, END], [11, END]),
]


def estimate_slowly(pairs):
    """p(f | e) by the formulas, word by word; the null word is None."""
    t = defaultdict(lambda: 1.0)
    for _ in range(EM_ITERATIONS):
        counts = Counter()
        for source, target in ((row[:-1], tuple(column[:-1])) for row, column in pairs):
            m, n = len(source), len(target)
            for j, f in enumerate(target, 1):
                near = [math.exp(-aligner.TENSION * abs(i / m - j / n)) for i in range(1, m + 1)]
                weights = [(e, 0.92 * w / sum(near) * t[e, f]) for e, w in zip(source, near, strict=True)]
                weights.append((None, 0.08 * t[None, f]))
                for e, weight in weights:
                    counts[e, f] += weight / sum(w for _, w in weights)
        totals = Counter()
        for (e, _), count in counts.items():
            totals[e] += count
        t = defaultdict(float, {(e, f): count / totals[e] for (e, f), count in counts.items()})
    return t


def test_probabilities_are_those_of_the_formulas():
    found = aligner.learn_aligner(Pairs(PAIRS))
    expected = {key: p for key, p in estimate_slowly(PAIRS).items() if key[0] is not None}
    got = dict(zip(found.codes.tolist(), np.exp(found.log_probs).tolist(), strict=True))
    assert got == pytest.approx({e * found.target_size + f: p for (e, f), p in expected.items()}, rel=1e-4, abs=2e-7)
    assert found.codes.tolist() == sorted(found.codes.tolist())


def test_the_same_pairs_give_the_same_aligner():
    first, second = (aligner.learn_aligner(Pairs(PAIRS)) for _ in range(2))
    assert np.array_equal(first.log_probs, second.log_probs) and np.array_equal(first.codes, second.codes)


def test_pairs_beyond_the_limit_are_left_out_evenly(monkeypatch):
    monkeypatch.setattr(aligner, "MAX_WORD_PAIRS", 13)  # of 38: every third pair
    assert aligner.learn_aligner(Pairs(PAIRS)).codes.tolist() == aligner.learn_aligner(Pairs(PAIRS[::3])).codes.tolist()


def test_sources_and_targets_without_words_are_no_mistake():
    assert len(aligner.learn_aligner(Pairs([([END], [END])])).codes) == 1
    found = aligner.learn_aligner(Pairs([([END], [7, END]), ([5, END], [8, END])]))
    assert found.codes.tolist() == [5 * found.target_size + 8]  # 7 has the null word only
