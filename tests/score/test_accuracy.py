import pytest

from saccade.errors import SaccadeError
from saccade.score.metrics.accuracy import exact_match


def test_exact_match_counts_whole_outputs() -> None:
    assert exact_match(["a b", "a", "A b", "a b "], ["a b"] * 4).value == 25.0


def test_the_signature_says_what_was_counted() -> None:
    assert exact_match(["a"], ["a"]).signature == "exact|case:mixed|nrefs:1"


def test_empty_input_is_refused() -> None:
    with pytest.raises(SaccadeError, match="nothing to score"):
        exact_match([], [])


def test_case_can_be_ignored():
    score = exact_match(["A dog", "b"], ["a dog", "c"], lowercase=True)
    assert (score.value, score.signature) == (50.0, "exact|case:lc|nrefs:1")
