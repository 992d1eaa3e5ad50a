import copy
import gc

import pytest
import torch
from torch import nn

from saccade.layers import few_rows, prepared
from saccade.layers.few_rows import MOST, FewRows
from saccade.layers.prepared import PackedLinear

pytestmark = pytest.mark.skipif(few_rows.kernel() is None, reason="needs AVX-512 VNNI and a compiler")


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(37, 53), (64, 32), (3, 1), (100, 48), (256, 1000)])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (7, 1), (2, 4), (3, 3, 3), (70,)])
def test_it_is_the_product(shape: tuple[int, ...], size: tuple[int, int], bias: bool, relu: bool) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(*size, bias=bias), torch.randn(*shape, size[0])
    with torch.inference_mode():
        expected = linear(x).relu() if relu else linear(x)
        y = FewRows(linear.weight.detach(), linear.bias, relu=relu)(x)
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_a_row_gives_the_same_in_any_company_and_nan_stays_in_its_row() -> None:
    linear, x = nn.Linear(37, 53), torch.randn(19, 37)
    layer = FewRows(linear.weight.detach(), linear.bias, relu=True)
    x[3, 5] = torch.nan
    together = layer(x)
    assert together[3].isnan().all() and together[[0, 1, 2, 4]].isfinite().all()
    assert together.nan_to_num().equal(torch.cat([layer(row[None]) for row in x]).nan_to_num())


@torch.inference_mode()
def test_a_copy_has_weights_of_its_own() -> None:
    linear, x = nn.Linear(37, 53), torch.randn(2, 37)
    layer = FewRows(linear.weight.detach(), linear.bias, relu=False)
    expected, other = layer(x), copy.deepcopy(layer)
    layer.weight.zero_()
    del layer
    gc.collect()
    assert other(x).equal(expected)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, MOST, MOST + 1])
def test_a_packed_product_leaves_few_rows_to_it(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = PackedLinear(torch.randn(300, 300), None, single=True), torch.randn(rows, 300)
    assert layer.few is not None and layer.plain is None
    asked = []
    monkeypatch.setattr(FewRows, "__call__", lambda self, x: asked.append(x) or x)
    layer(x)
    assert len(asked) == (rows <= MOST)


def test_without_a_compiler_one_row_reads_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared.few_rows, "kernel", lambda: None)
    linear, x = nn.Linear(300, 300), torch.randn(1, 300)
    layer = PackedLinear(linear.weight, linear.bias, single=True)
    assert layer.few is None and layer.plain is not None
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), linear(x), rtol=1e-5, atol=1e-5)
