import random
from itertools import zip_longest

import pytest

from saccade.errors import SaccadeError
from saccade.score.metrics.accuracy import count_correct_characters, exact_match


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


def test_exact_match_and_characters_are_accuracies_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score

    draw = random.Random(7)
    for _ in range(100):
        count = draw.randint(1, 9)
        ours, theirs = (
            ["".join(draw.choices("aBß日 \u0301", k=draw.randint(0, 3))) for _ in range(count)] for _ in "xy"
        )
        assert exact_match(ours, theirs).value == pytest.approx(100 * accuracy_score(theirs, ours))
        pairs = [pair for sides in zip(theirs, ours) for pair in zip_longest(*sides, fillvalue="")]
        correct, total = count_correct_characters(ours, theirs).sum(0)
        assert total == len(pairs)
        assert correct == (accuracy_score(*zip(*pairs), normalize=False) if pairs else 0)
