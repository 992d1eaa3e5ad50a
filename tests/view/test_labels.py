import random

import pytest

from saccade.errors import SaccadeError
from saccade.view.labels import check_map, compute_visual_order, format_pair, shorten, split_clusters, to_readable


def reorder(text: str) -> str:
    return "".join(text[i] for i in compute_visual_order(list(text)))


def test_left_to_right_text_keeps_its_order():
    assert compute_visual_order(list("5 mai 1994")) == list(range(10))


def test_right_to_left_text_runs_from_right_to_left():
    assert reorder("אבג") == "גבא"


def test_numbers_inside_right_to_left_text_keep_their_direction():
    assert reorder("אב 1994 גד") == "דג 1994 בא"


def test_arabic_digits_keep_their_direction():
    assert reorder("مايو ١٩٩٤") == "١٩٩٤ ويام"


def test_date_with_slashes_is_one_number():
    assert reorder("ב 12/03/94") == "12/03/94 ב"


def test_percent_sign_goes_with_its_number():
    assert reorder("א 50% ב") == "ב 50% א"


def test_right_to_left_words_inside_left_to_right_text_are_reversed():
    assert reorder("on אבג!") == "on גבא!"


def test_end_mark_of_right_to_left_text_stands_leftmost():
    labels = [*"אב19", "<end>"]
    assert compute_visual_order(labels) == [4, 2, 3, 1, 0]


def test_words_are_ordered_by_their_first_letter():
    assert compute_visual_order(["שלום", "2024", "עולם"]) == [2, 1, 0]


def test_combining_mark_follows_its_letter():
    assert compute_visual_order(["א", "\u05b8", "ב"]) == [2, 1, 0]


# Different characters of each class of the bidirectional algorithm, so that their order can be read off a text.
BIDI_CLASSES = {
    "L": "abcdefghijklmnop", "R": "אבגדהוזחטיכלמ", "AL": "ابتثجحخدذرزسش", "EN": "0123456789", "AN": "٠١٢٣٤٥٦٧٨٩",
    "ES": "+-", "ET": "$%#°€", "CS": ",.:/", "NSM": "\u05b0\u05b1\u05b2", "WS": " \u2003\u2002", "ON": "!&*;=?",
}  # fmt: skip


def draw_text(draw: random.Random, classes: list[str], longest: int) -> str:
    left = {kind: list(BIDI_CLASSES[kind]) for kind in classes}
    kinds = draw.choices(classes, k=draw.randint(1, longest))
    return "".join(left[kind].pop(0) for kind in kinds if left[kind])


@pytest.mark.parametrize(
    "classes", [["L", "R", "WS"], ["AL", "AN", "EN", "CS"], ["R", "EN", "ET", "ES"], [*BIDI_CLASSES]]
)
def test_the_order_of_characters_is_that_of_python_bidi(classes):
    from bidi import get_display

    draw = random.Random(7)
    for _ in range(1500):
        text = draw_text(draw, classes, draw.choice([4, 9, 30]))
        assert reorder(text) == get_display(text), [text]


def test_the_order_of_words_is_that_of_python_bidi():
    from bidi import get_display

    draw = random.Random(3)
    words = ["one", "two", "שלום", "עולם", "مايو", "يوم", "12", "345", "٦٧", "-", "!"]
    for _ in range(500):
        labels = [part for word in draw.sample(words, draw.randint(1, len(words))) for part in (word, " ")][:-1]
        ordered = [labels[i] for i in compute_visual_order(labels)]
        is_reversed = {word: word.isalpha() and word > "z" for word in words}
        assert "".join(label[::-1] if is_reversed.get(label) else label for label in ordered) == get_display(
            "".join(labels)
        )


def test_the_order_of_no_labels_is_empty():
    assert compute_visual_order([]) == []


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (" ", "␣"),
        ("\u202f", "␣"),  # the narrow space that locales put into dates
        ("\n", "␣"),
        ("\u0301", "◌\u0301"),
        ("\u200f", "U+200F"),
        ("a\u200db", "ab"),
        ("", ""),
        ("year", "year"),
    ],
)
def test_invisible_labels_are_made_visible(label, expected):
    assert to_readable(label) == expected


def test_marks_stay_with_their_letter():
    assert split_clusters("e\u0301a") == ["e\u0301", "a"]


def test_long_label_is_shortened_between_characters():
    assert shorten("ae\u0301iou", max_length=3) == "ae\u0301…"
    assert shorten("abc", max_length=3) == "abc"


def test_both_sides_of_an_arrow_keep_their_direction():
    assert format_pair("אב", "12") == "\u200e\u2068אב\u2069 → \u206812\u2069"


def test_map_must_fit_its_labels():
    with pytest.raises(SaccadeError, match=r"weights must be \(rows, columns\) = \(2, 3\).*got \(3, 2\)"):
        check_map([[0.0, 1.0]] * 3, rows=["a", "b"], columns=["x", "y", "z"])


def test_empty_map_is_refused():
    with pytest.raises(SaccadeError, match="not empty"):
        check_map([[]], rows=["a"], columns=[])


def test_map_with_nan_is_refused():
    with pytest.raises(SaccadeError, match="weights must be finite"):
        check_map([[float("nan")]], rows=["a"], columns=["b"])
