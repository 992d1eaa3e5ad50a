"""Axial positions: two small tables in place of a long one."""

import pytest
import torch

from saccade.errors import SaccadeError
from saccade.layers.attention.positions import Axial


def test_a_position_is_a_row_and_a_column() -> None:
    layer = Axial(7, shape=(3, 5), row_dim=2)
    where = layer(torch.arange(15)[None])
    assert where.shape == (1, 15, 7)
    assert torch.equal(where[0, 13], torch.cat((layer.rows.weight[2], layer.columns.weight[3])))
    assert sum(parameter.numel() for parameter in layer.parameters()) == 3 * 2 + 5 * 5
    assert len(where[0].unique(dim=0)) == 15


def test_a_sequence_that_is_too_long_is_rejected() -> None:
    with pytest.raises(
        SaccadeError, match="a sequence of 16 tokens has more positions than were learned, 15; split it"
    ):
        Axial(7, shape=(3, 5), row_dim=2)(torch.arange(16)[None])


@pytest.mark.parametrize("first", [0, 7, 9])
def test_both_tables_need_features(first: int) -> None:
    with pytest.raises(SaccadeError, match=f"positions.row_dim must be between 1 and 6, got {first}"):
        Axial(7, shape=(3, 5), row_dim=first)
