"""Word and character error rates, counted by hand and by jiwer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.errors import SaccadeError
from saccade.score.evaluate import score_texts
from saccade.score.metrics.error_rates import edit_distance, error_rate


@pytest.mark.parametrize(
    ("hypothesis", "reference", "wanted"),
    [
        ("the cat sat", "the cat sat", 0),
        ("the hat sat", "the cat sat", 1),
        ("the sat", "the cat sat", 1),
        ("the big cat sat", "the cat sat", 1),
        ("", "the cat sat", 3),
        ("the cat sat", "", 3),
        ("a hat sat down", "the cat sat", 3),
    ],
)
def test_edit_distance_by_hand(hypothesis, reference, wanted):
    assert edit_distance(hypothesis.split(), reference.split()) == wanted


def test_edit_distance_of_a_textbook_pair():
    assert edit_distance("sitting", "kitten") == 3


def test_rates_are_over_all_words_of_the_corpus():
    outputs, references = ["one two three", "for"], ["one two three four", "four five"]
    assert error_rate(outputs, references).value == pytest.approx(100 * 3 / 6)  # left out 1; replaced 1, left out 1
    assert error_rate(outputs, references, unit="cer").value == pytest.approx(100 * (5 + 6) / (18 + 9))


def test_a_rate_may_be_over_100_and_case_may_be_ignored():
    assert error_rate(["a b c"], ["x"]).value == 300
    assert error_rate(["The  Cat"], ["the cat"]).value == 100
    assert error_rate(["The  Cat"], ["the cat"], lowercase=True).value == 0
    assert "case:lc" in error_rate(["a"], ["a"], lowercase=True).signature


def test_empty_output_for_empty_reference_is_correct():
    assert error_rate([""], [""]).value == 0
    assert error_rate(["a b"], [""]).value == 200  # two insertions, as jiwer has it


def test_as_many_references_as_outputs_are_needed():
    with pytest.raises(SaccadeError, match="one reference for each output"):
        error_rate(["a"], [])


def test_evaluation_knows_both():
    scores = score_texts(["the cat"], ["the cat sat"], metrics=("wer", "cer", "accuracy"))
    assert scores["wer"].value == pytest.approx(100 / 3) and scores["cer"].value == pytest.approx(100 * 4 / 11)


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
@settings(max_examples=50, deadline=None)
def test_edit_distance_is_a_metric(a, b, c):
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert (edit_distance(a, b) == 0) == (a == b)


# Unicode white space, of which a user sees only that words are apart; and two characters that are none.
SPACES = [" ", "  ", "\t", "\n", "\u00a0", "\u202f", "\u2009", "\u3000", "\x1c", "\u200b", "\u2060"]
WORDS = ["a", "b", "the", "Katze", "straße", "e\u0301", "日本", "😀", "it's", "-", "שלום"]


def draw_corpus(draw: random.Random, longest: int = 8) -> tuple[list[str], list[str]]:
    """Return outputs and references of up to four sentences, some of them empty or nothing but spaces."""

    def draw_text() -> str:
        return "".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(draw.randint(0, longest)))

    count = draw.randint(1, 4)
    return [draw_text() for _ in range(count)], [draw.choice(["", "\u00a0"]) + draw_text() for _ in range(count)]


@pytest.mark.parametrize("unit", ["wer", "cer"])
def test_rates_are_those_of_jiwer(unit):
    import jiwer

    rate, draw = {"wer": jiwer.wer, "cer": jiwer.cer}[unit], random.Random(7)
    corpora = [draw_corpus(draw) for _ in range(600)] + [draw_corpus(draw, longest=400) for _ in range(3)]
    for outputs, references in corpora:
        assert error_rate(outputs, references, unit=unit).value == pytest.approx(
            100 * rate(references, outputs), abs=1e-9
        ), (outputs, references)


@pytest.mark.parametrize(
    ("output", "words"),
    [("10\u00a0000", 1), ("a\tb", 1), ("a\t b", 2), ("a \u00a0b", 2), ("\u00a0a\u3000", 1), ("\t", 0)],
)
def test_words_are_separated_by_plain_spaces_or_by_several_of_any_kind(output: str, words: int) -> None:
    assert error_rate([output], [""]).value == 100 * words
