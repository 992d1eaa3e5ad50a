import copy
import gc

import pytest
import torch
from torch import nn

from saccade.kernels.cpu import fma
from saccade.kernels.cpu.fma import FmaLinear, build_float_linear
from saccade.kernels.cpu.prepared import PackedLinear

pytestmark = pytest.mark.skipif(fma.load_kernel() is None, reason="needs AVX-512 VNNI and a compiler")


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(37, 53), (64, 32), (3, 1), (100, 48), (256, 1000)])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (7, 1), (2, 4), (3, 3, 3), (70,), (1100,)])
def test_it_is_the_product(shape: tuple[int, ...], size: tuple[int, int], bias: bool, relu: bool) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(*size, bias=bias), torch.randn(*shape, size[0])
    with torch.inference_mode():
        expected = linear(x).relu() if relu else linear(x)
        y = FmaLinear(linear.weight.detach(), linear.bias, relu=relu)(x)
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_a_row_gives_the_same_in_any_company_and_nan_stays_in_its_row() -> None:
    linear, x = nn.Linear(37, 53), torch.randn(19, 37)
    layer = FmaLinear(linear.weight.detach(), linear.bias, relu=True)
    x[3, 5] = torch.nan
    together = layer(x)
    assert together[3].isnan().all() and together[[0, 1, 2, 4]].isfinite().all()
    assert together.nan_to_num().equal(torch.cat([layer(row[None]) for row in x]).nan_to_num())


@torch.inference_mode()
def test_a_copy_has_weights_of_its_own() -> None:
    linear, x = nn.Linear(37, 53), torch.randn(2, 37)
    layer = FmaLinear(linear.weight.detach(), linear.bias, relu=False)
    expected, other = layer(x), copy.deepcopy(layer)
    layer.weight.zero_()
    del layer
    gc.collect()
    assert other(x).equal(expected)


def test_other_types_are_left_to_onednn() -> None:
    linear = nn.Linear(300, 300).bfloat16()
    assert isinstance(build_float_linear(linear.weight, linear.bias), PackedLinear)


def test_without_a_compiler_it_is_the_product_of_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(300, 300)
    assert isinstance(build_float_linear(linear.weight, linear.bias, single_row=True), FmaLinear)
    monkeypatch.setattr(fma, "load_kernel", lambda: None)
    layer = build_float_linear(linear.weight, linear.bias, single_row=True, relu=True)
    assert isinstance(layer, PackedLinear) and layer.plain is not None and layer.relu
