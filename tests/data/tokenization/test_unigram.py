from collections import Counter

import numpy as np
import pytest

from saccade.config.schema import Tokenizer
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.data.tokenization.unigram import MAX_WORD_LENGTH, train_unigram

ALPHABET = ["a", "b", "c", "d"]


def train(size=9):
    return dict(train_unigram(Counter({"abab": 60, "abcd": 30, "cd": 40, "dcba": 1}), alphabet=ALPHABET, size=size))


def test_pieces_are_the_alphabet_and_frequent_runs():
    pieces = train(8)

    assert len(pieces) == 8
    assert set(ALPHABET) < set(pieces)
    assert {"ab", "cd"} & set(pieces)


def test_scores_are_log_probabilities_most_probable_first():
    scores = list(train().values())

    assert scores == sorted(scores, reverse=True)
    assert sum(np.exp(scores)) == pytest.approx(1, abs=1e-3)


def test_the_order_of_the_words_does_not_matter():
    words = {"abab": 60, "abcd": 30, "cd": 40, "dcba": 30}
    turned = dict(reversed(words.items()))

    assert train_unigram(Counter(words), alphabet=ALPHABET, size=7) == train_unigram(
        Counter(turned), alphabet=ALPHABET, size=7
    )


def test_expected_counts_of_one_word_are_as_by_hand():
    """a, b and ab equally probable: `ab` is ab (1/3) or a b (1/9), so ab is used 3 times in 4."""
    from saccade.data.tokenization.unigram import _compute_expected_counts, _find_edges

    pieces = ["a", "b", "ab"]
    counts = _compute_expected_counts(_find_edges(["ab"], pieces), np.full(3, 1 / 3), np.array([8.0]), ["ab"])

    assert counts == pytest.approx([2, 2, 6])


def test_the_best_way_around_a_piece_is_found():
    from saccade.data.tokenization.unigram import _find_edges, _score_alternatives

    pieces = ["a", "b", "ab", "aba"]
    inner = _find_edges(pieces, pieces)
    best = _score_alternatives(inner.select(inner.word != inner.token), np.array([0.1, 0.2, 0.3, 0.4]), pieces)

    assert np.exp(best[2:]) == pytest.approx([0.1 * 0.2, 0.3 * 0.1])
    assert np.isneginf(best[:2]).all()


def test_no_words_leave_the_alphabet():
    assert [piece for piece, _ in train_unigram(Counter(), alphabet=ALPHABET, size=9)] == ALPHABET


def test_long_words_are_cut_and_not_left_out():
    pieces = train_unigram(Counter({"abcd" * MAX_WORD_LENGTH: 3}), alphabet=ALPHABET, size=9)

    assert max(len(piece) for piece, _ in pieces) >= 8


@pytest.mark.parametrize("length", [16, 41])
def test_text_without_spaces_gets_pieces_longer_than_bytes(length):
    words = [
        "今天",
        "天气",
        "很好",
        "我们",
        "去公园",
        "看见",
        "一只",
        "小猫",
        "在",
        "草地上",
        "睡觉",
        "他",
        "喜欢",
        "喝茶",
    ]
    draw = np.random.default_rng(1)
    texts = ["".join(draw.choice(words, length))[:length] for _ in range(211)]
    made = train_tokenizers(Tokenizer(kind="unigram", size=400), lambda: [(text, text) for text in texts])

    tokens = sum(len(made.source.encode(text)) - 1 for text in texts)
    assert tokens < sum(len(text.encode()) for text in texts) / 4
