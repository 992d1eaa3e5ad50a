"""Sublayers that are skipped for some rows of a batch (stochastic depth, Huang et al. 2016)."""

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.layers.blocks.residual import Residual
from saccade.model.build.model import build


def around(residual, x, sublayer):
    """The sublayer with its residual connection, added up."""
    hidden, stream = residual.begin_sublayer(x, None)
    hidden, stream = residual.end_sublayer(sublayer(hidden), stream)
    return hidden if stream is None else stream + hidden


@pytest.mark.parametrize("order", ["post", "pre"])
def test_rows_pass_by_the_sublayer_or_get_more_of_it(order):
    torch.manual_seed(1)
    residual, x = Residual(nn.Identity(), order=order, dropout=0.0, drop_path=0.5), torch.zeros(400, 2, 3)
    total = around(residual, x, torch.ones_like)
    assert set(total.unique().tolist()) == {0.0, 2.0}
    assert bool((total == total[:, :1, :1]).all())
    residual.eval()
    assert set(around(residual, x, torch.ones_like).unique().tolist()) == {1.0}


def test_the_share_grows_from_layer_to_layer():
    changes = ["reader.stack.drop_path=0.3", "reader.stack.layers=4"]
    model = build(load("vit", tiny=True, overrides=changes), source_size=9, target_size=7)
    blocks = model.reader.stack.blocks
    shares = [[residual.skip and residual.skip.probability for residual in block.residuals] for block in blocks]
    assert shares[0] == [None, None]
    assert [pair[1] for pair in shares[1:]] == pytest.approx([0.1, 0.2, 0.3])


def test_texts_that_share_a_row_are_not_packed():
    plain, dropping = (
        build(load("transformer", tiny=True, overrides=changes), source_size=19, target_size=19)
        for changes in ([], ["reader.stack.drop_path=0.2"])
    )
    assert plain.capabilities.packed_rows
    assert not dropping.capabilities.packed_rows
