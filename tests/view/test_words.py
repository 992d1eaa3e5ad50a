import numpy as np

from saccade.view.words import merge_labels, merge_tokens


def test_columns_are_added_and_rows_averaged():
    weights = np.array([[[0.1, 0.2, 0.7], [0.5, 0.1, 0.4]]])
    joined = merge_tokens(weights, rows=[[0, 1]], columns=[[0], [1, 2]])
    np.testing.assert_allclose(joined, [[[0.3, 0.7]]])


def test_rows_still_sum_to_one():
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (3, 5))
    joined = merge_tokens(weights, rows=[[0], [1, 2, 3], [4]], columns=[[0, 1], [2], [3, 4, 5, 6]])
    assert joined.shape == (3, 3, 3)
    np.testing.assert_allclose(joined.sum(-1), 1.0)


def test_labels_are_words():
    labels = ["␣two", "␣do", "gs", "␣", "<end>"]
    assert merge_labels(labels, [[0], [1, 2], [3], [4]]) == ["two", "dogs", "␣", "<end>"]


def test_marks_of_pieces_are_left_out():
    assert merge_labels(["play", "##ing", "##"], [[0, 1], [2]]) == ["playing", "##"]
