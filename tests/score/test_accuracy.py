import pytest

from saccade.errors import SaccadeError
from saccade.score.accuracy import exact_match, token_accuracy


def test_exact_match_counts_whole_outputs() -> None:
    assert exact_match(["a b", "a", "A b", "a b "], ["a b"] * 4).value == 25.0


def test_token_accuracy_counts_words_at_their_place() -> None:
    assert token_accuracy(["a b c", "b a", ""], ["a b", "a b", "x"]).value == pytest.approx(100 * 2 / 5)


def test_signatures_say_what_was_counted() -> None:
    assert exact_match(["a"], ["a"]).signature == "exact|case:mixed|nrefs:1"
    assert "tok:space" in token_accuracy(["a"], ["a"]).signature


def test_nothing_is_refused() -> None:
    with pytest.raises(SaccadeError, match="nothing to score"):
        exact_match([], [])
