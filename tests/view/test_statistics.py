import numpy as np
import pytest

from saccade.view.statistics import compute_diagonality, compute_distance, compute_entropy, compute_statistics


def heads(*maps) -> np.ndarray:
    return np.array(maps, dtype=np.float32)


UNIFORM = np.full((5, 4), 0.25)


def test_entropy_counts_bits():
    """Two equal weights are one bit, a single one is 0; a head has the mean of its rows."""
    sharp, halves = [[1, 0, 0, 0]] * 2, [[0.5, 0.5, 0, 0], [1, 0, 0, 0]]
    assert compute_entropy(heads(sharp, halves)).tolist() == [0.0, 0.5]
    assert compute_entropy(heads(UNIFORM)) == pytest.approx([2.0])


def test_distance_is_in_columns():
    back = np.eye(5, k=-2)  # two positions back; the first two rows are fully masked and ignored
    assert compute_distance(heads(np.eye(5), back)).tolist() == [0.0, 2.0]


def test_distance_between_two_texts_is_from_the_straight_way():
    """Three rows and five columns: columns 0, 2 and 4 are the diagonal."""
    on = np.zeros((3, 5))
    on[[0, 1, 2], [0, 2, 4]] = 1
    off = np.zeros((3, 5))
    off[[0, 1, 2], [1, 4, 4]] = 1
    assert compute_distance(heads(on, off)).tolist() == [0.0, 1.0]


def test_diagonal_is_a_correlation():
    assert compute_diagonality(heads(np.eye(7), np.eye(7)[::-1])) == pytest.approx([1.0, -1.0])
    assert compute_diagonality(heads(np.kron(np.eye(3), np.ones((1, 2))) / 2)) == pytest.approx([0.9561829], abs=1e-6)
    assert compute_diagonality(heads(UNIFORM)) == pytest.approx([0.0])


def test_diagonal_is_that_of_numpy():
    weights = np.random.default_rng(0).random((5, 7))
    i, j = np.meshgrid(range(5), range(7), indexing="ij")
    spread = np.cov(np.stack((i.ravel(), j.ravel())), aweights=weights.ravel(), ddof=0)
    wanted = spread[0, 1] / np.sqrt(spread[0, 0] * spread[1, 1])
    assert compute_diagonality(heads(weights)) == pytest.approx([wanted], abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_one_row_or_column_says_nothing_of_a_direction(shape):
    numbers = compute_statistics(np.full((1, *shape), 1 / shape[1], dtype=np.float32))
    assert numbers["diagonal"] == [0.0]
    assert np.isfinite([numbers["entropy"], numbers["distance"]]).all()


def test_a_fully_masked_head_has_zeros():
    assert compute_statistics(np.zeros((1, 3, 3), dtype=np.float32)) == {
        "entropy": [0.0], "distance": [0.0], "diagonal": [0.0]
    }  # fmt: skip
