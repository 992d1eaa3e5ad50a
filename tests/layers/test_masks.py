"""Masks: each constructor against a loop written by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from saccade.layers.attention.masks import (
    Mask,
    causal,
    causal_window,
    dense,
    documents,
    make_positions,
    padding,
    prefix,
    window,
)

B, N = 2, 7
KEEP = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
LENGTH = torch.tensor([2, 5])
TEXTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2]])
ANY = torch.rand(B, N, N, generator=torch.Generator().manual_seed(1)) > 0.5

CASES: dict[str, tuple[Mask, Callable[[int, int, int], bool]]] = {
    "padding": (padding(KEEP), lambda b, i, j: bool(KEEP[b, j])),
    "causal": (causal(), lambda b, i, j: j <= i),
    "window 0": (window(0), lambda b, i, j: i == j),
    "window 2": (window(2), lambda b, i, j: i - 2 <= j <= i + 2),
    "banded": (causal_window(2), lambda b, i, j: i - 2 <= j <= i),
    "prefix": (prefix(LENGTH), lambda b, i, j: j < int(LENGTH[b])),
    "documents": (documents(TEXTS, TEXTS), lambda b, i, j: bool(TEXTS[b, i] == TEXTS[b, j])),
    "dense": (dense(ANY), lambda b, i, j: bool(ANY[b, i, j])),
    "prefix or causal": (prefix(LENGTH) | causal(), lambda b, i, j: j < int(LENGTH[b]) or j <= i),
    "causal and padding": (causal() & padding(KEEP), lambda b, i, j: j <= i and bool(KEEP[b, j])),
    "(window or prefix) and causal": (
        (window(1) | prefix(LENGTH)) & causal(),
        lambda b, i, j: (abs(i - j) <= 1 or j < int(LENGTH[b])) and j <= i,
    ),
}


def matrix(mask: Mask, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return mask.to_dense(q_pos, k_pos).expand(B, q_pos.shape[1], k_pos.shape[1])


@pytest.mark.parametrize("name", CASES)
def test_every_mask_is_what_its_name_says(name: str) -> None:
    mask, may = CASES[name]
    where = make_positions(N, torch.device("cpu"))
    got = matrix(mask, where, where)
    expected = torch.tensor([[[may(b, i, j) for j in range(N)] for i in range(N)] for b in range(B)])
    assert got.dtype == torch.bool
    assert torch.equal(got, expected)


def test_a_causal_step_of_2_queries_and_5_keys_sees_4_and_5() -> None:
    """Causal means absolute positions; aligned at the top left the two queries would see 1 and 2 keys."""
    seen = matrix(causal(), torch.tensor([[3, 4]]), make_positions(5, torch.device("cpu")))
    assert seen.sum(-1).tolist() == [[4, 5]] * B


@pytest.mark.parametrize("name", ["causal", "window 2", "banded", "prefix or causal"])
def test_the_mask_of_a_step_is_the_last_rows_of_the_whole_mask(name: str) -> None:
    mask, _ = CASES[name]
    where = make_positions(N, torch.device("cpu"))
    whole = matrix(mask, where, where)
    assert torch.equal(matrix(mask, where[:, 4:], where), whole[:, 4:])


def test_rows_may_stand_at_different_positions() -> None:
    at = torch.tensor([[1], [4]])
    seen = matrix(causal() & window(1), at, make_positions(N, torch.device("cpu")))
    assert [row.nonzero().flatten().tolist() for row in seen[:, 0]] == [[0, 1], [3, 4]]


def test_a_band_is_what_all_parts_allow() -> None:
    a, b, c = causal(), window(3), padding(KEEP)
    assert (a & b & c).to_band() == (3, True, KEEP) and (a & b & c).hides_future()
    assert ((a | b) & c).to_band() is None and not ((a | b) & c).hides_future()
    assert a.is_causal and not (a & b).is_causal
