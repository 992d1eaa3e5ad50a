import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from saccade.errors import SaccadeError
from saccade.view.terminal import heatmap


def test_a_small_map():
    text = heatmap([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], rows=["a", "b"], columns=["x", "yz", "w"], width=30)
    assert text.splitlines() == ["    y", "  x z w", "a ██", "b   ▒▒▒▒", "", "  0  ░▒▓█ 1.00"]


def test_the_largest_weight_gets_the_darkest_shade():
    body = heatmap([[0.2, 0.1]], rows=["a"], columns=["x", "y"], width=30).splitlines()[1]
    assert body == "a ██▒▒"


def test_a_map_of_zeros_is_blank():
    body = heatmap(np.zeros((1, 2)), rows=["a"], columns=["x", "y"], width=30).splitlines()[1]
    assert body.strip() == "a"


def test_columns_that_do_not_fit_go_on_below():
    text = heatmap(np.ones((1, 41)), rows=["a"], columns=list("x" * 41), width=22)
    assert text.count("x") == 41
    assert max(map(cell_len, text.splitlines())) <= 22


def test_columns_of_right_to_left_text_start_at_the_right():
    body = heatmap([[1.0, 0.0, 0.0]], rows=["a"], columns=["א", "ב", "ג"], width=30).splitlines()[1]
    assert body == "a     ██"


def test_head_of_right_to_left_text_is_kept_in_place_on_terminals_that_reorder():
    head = heatmap([[1.0, 0.0]], rows=["a"], columns=["א", "ב"], width=30).splitlines()[0]
    assert head == "\u202d  ב א\u202c"


def test_right_to_left_row_does_not_turn_its_line_round():
    body = heatmap([[1.0]], rows=["אב"], columns=["x"], width=30).splitlines()[1]
    assert body == "\u200eאב\u200e ██"


def test_wide_characters_stand_on_their_columns():
    head, body, *_ = heatmap([[0.0, 1.0]], rows=["日本"], columns=["年", "月"], width=30).splitlines()
    assert (head, body) == ("     年月", "日本   ██")


def test_long_row_labels_are_cut():
    body = heatmap([[1.0]], rows=["abcdefghijklmnopq"], columns=["x"], width=30).splitlines()[1]
    assert body == "abcdefghi… ██"


def test_long_column_labels_are_cut():
    lines = heatmap([[1.0]], rows=["a"], columns=["abcdefghijklmnopq"], width=30).splitlines()
    assert [line.strip() for line in lines[:12]] == [*"abcdefghijk", "…"]


def test_too_narrow_a_terminal_is_refused():
    with pytest.raises(SaccadeError, match="width must be at least 20, got 7"):
        heatmap([[1.0]], rows=["a"], columns=["b"], width=7)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.text(max_size=30), min_size=1, max_size=5),
    columns=st.lists(st.text(max_size=30), min_size=1, max_size=50),
    width=st.integers(20, 200),
)
def test_no_line_is_wider_than_the_terminal(rows, columns, width):
    text = heatmap(np.ones((len(rows), len(columns))), rows=rows, columns=columns, width=width)
    assert max(map(cell_len, text.split("\n"))) <= width
