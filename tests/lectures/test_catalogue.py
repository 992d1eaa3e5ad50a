"""The catalogue contains all rows, each with a place, a sentence and a state."""

import pytest

from saccade.errors import SaccadeError
from saccade.lectures import tables
from saccade.lectures.catalogue import find_row, get_rows_in_order, load_rows
from saccade.lectures.claims import build_result, expect_at_least, expect_at_most, expect_equal, expect_near
from saccade.lectures.sources import load_notes, parse_sources

TRAIN = {5, 19, 21, 56, 81, 99, 101}


LAST = 119  # 114 statements of the notes, and five systems of their table of translation systems


def test_all_rows_are_there_once():
    assert [row.row for row in load_rows()] == list(range(1, LAST + 1))


def test_the_rows_of_single_systems_stand_in_the_lines_of_the_table():
    places = {row.row: row.where for row in load_rows() if row.row > 114}
    assert places == {115: "S4:226", 116: "S4:227,231", 117: "S4:228,232", 118: "S4:230", 119: "S4:231-233"}


def test_rows_that_take_minutes_are_those_that_train_or_time():
    assert {row.row for row in load_rows() if row.trains} == TRAIN


@pytest.mark.parametrize("row", load_rows(), ids=lambda row: str(row.row))
def test_a_row_says_where_it_stands_and_what_it_claims(row):
    assert ", ".join(source.code for source in parse_sources(row.where)) == row.where
    assert row.sentence.endswith(".")
    assert "\n" not in row.sentence
    if row.measure is None:
        assert row.state == "prose"
        assert row.why


def test_sources_are_named_in_full():
    assert [str(source) for source in parse_sources("S3:24,100, S4:28-33, S0:7")] == [
        "Lecture 17: Attention, lines 24, 100",
        "How Transformer Model Works (Jaegul Choo, KAIST), lines 28-33",
        "Lecture Notes 17: Transformers (CSE 5523), line 7",
    ]
    assert [source.first_line for source in parse_sources("S3:24,100, S4:759 and many other lines")] == [24, 759]


@pytest.mark.parametrize("lecture", load_notes())
def test_slide_order_is_the_order_of_lines(lecture):
    lines = [
        next(source.first_line for source in parse_sources(row.where) if source.notes.code == lecture)
        for row in get_rows_in_order(lecture)
    ]
    assert lines == sorted(lines)
    assert lines


def test_every_row_is_in_the_report_of_some_lecture():
    assert {row.row for name in load_notes() for row in get_rows_in_order(name)} == set(range(1, LAST + 1))


@pytest.mark.parametrize("number", [0, LAST + 1, -1])
def test_a_wrong_row_is_refused(number):
    with pytest.raises(SaccadeError, match=f"there is no row {number}; rows are 1 to {LAST}"):
        find_row(number)


def test_a_wrong_lecture_is_refused():
    with pytest.raises(
        SaccadeError, match=r"there is no lecture 'S9'; lectures are S0 \(Lecture Notes 17: Transformers\), S1 "
    ):
        get_rows_in_order("S9")


def test_the_tables_of_the_notes_are_data():
    systems, an_hour = tables.load_translations()
    assert [s.en_de for s in systems] == [23.75, None, 24.6, 25.16, 26.03, None, 26.30, 26.36, 27.3, 28.4]
    assert an_hour == 8 * 9.5e12 * 3600
    assert [s.row for s in tables.load_sizes()] == [88, 89, 90, 90, 91, 92, 93, 94, 95, 96, 97]
    assert all(s.source for s in tables.load_sizes())


@pytest.mark.parametrize(
    ("compared", "holds"),
    [
        (expect_near("x", 1.05, 1, within=0.1), True),
        (expect_near("x", 1.2, 1, within=0.1), False),
        (expect_near("x", float("nan"), 1, within=0.1), False),
        (expect_equal("x", "a", "a"), True),
        (expect_equal("x", 3, 4), False),
        (expect_at_most("x", 1, 1), True),
        (expect_at_most("x", float("nan"), 1), False),
        (expect_at_least("x", 2, 1), True),
        (expect_at_least("x", 0.5, 1), False),
    ],
)
def test_comparisons(compared, holds):
    assert compared.holds is holds
    assert build_result(compared).holds is holds


def test_a_check_that_compares_nothing_does_not_hold():
    assert not build_result().holds
