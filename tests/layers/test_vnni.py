import copy
import gc

import pytest
import torch
from torch import nn

from saccade.kernels.cpu import prepared, vnni
from saccade.kernels.cpu.prepared import Int8Linear, quantize_weight
from saccade.kernels.cpu.vnni import VnniLinear, build_int8_linear, load_kernel, pack_blocks

K, N = 37, 53

pytestmark = pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")
compiles = pytest.mark.usefixtures("there")


@pytest.fixture
def there() -> None:
    if load_kernel() is None:
        pytest.skip("needs AVX-512 VNNI and a compiler")


def make_weights(inputs: int = K, outputs: int = N, *, bias: bool = True) -> tuple[torch.Tensor, ...]:
    linear = nn.Linear(inputs, outputs, bias=bias)
    return *quantize_weight(linear.weight.detach()), linear.bias


@compiles
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(K, N), (64, 32), (3, 1), (100, 48), (256, 1000)])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (7, 1), (2, 4), (3, 3, 3), (70,)])
def test_it_is_the_product_of_onednn(
    shape: tuple[int, ...], size: tuple[int, int], bias: bool, positive: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    parts, x = make_weights(*size, bias=bias), torch.randn(*shape, size[0])
    x = x.abs() if positive else x
    with torch.inference_mode():
        expected = Int8Linear(*parts, exact=True, relu=relu, nonnegative=positive)(x)
        y = VnniLinear(*parts, relu=relu, nonnegative=positive)(x)
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)


@compiles
def test_a_row_gives_the_same_in_any_company() -> None:
    layer, x = VnniLinear(*make_weights()), torch.randn(19, K) * 10.0 ** torch.arange(-9, 10)[:, None]
    together = layer(x)
    assert torch.equal(together, torch.cat([layer(row[None]) for row in x]))


@compiles
def test_a_row_of_zeros_gives_the_bias_and_one_with_nan_nothing_else() -> None:
    weight, scale, bias = make_weights()
    x = torch.randn(10, K)
    x[3], x[5, 0], x[6, -1] = 0.0, torch.nan, torch.nan
    for relu in (True, False):
        y = VnniLinear(weight, scale, bias, relu=relu)(x)
        assert torch.equal(y[3], bias.relu() if relu else bias)
        assert y.isnan().all(1).nonzero()[:, 0].tolist() == y.isnan().any(1).nonzero()[:, 0].tolist() == [5, 6]


@compiles
def test_rows_may_be_none_short_numbers_or_apart_in_memory() -> None:
    layer, x = VnniLinear(*make_weights()), torch.randn(6, 2 * K)
    assert layer(x[:0, :K]).shape == (0, N)
    assert torch.equal(layer(x[:, ::2]), layer(x[:, ::2].clone()))
    short = x[:, :K].bfloat16()
    assert torch.equal(layer(short), layer(short.float()))


@compiles
def test_threads_share_the_work() -> None:
    layer, x, before = VnniLinear(*make_weights(128, 300)), torch.randn(65, 128), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = layer(x)
        torch.set_num_threads(3)
        assert torch.equal(layer(x), alone)
    finally:
        torch.set_num_threads(before)


@compiles
def test_a_copy_has_weights_of_its_own() -> None:
    layer, x = VnniLinear(*make_weights()), torch.randn(2, K)
    expected, other = layer(x), copy.deepcopy(layer)
    layer.packed.zero_()
    del layer
    gc.collect()
    assert torch.equal(other(x), expected)


def test_weights_stand_in_blocks_of_outputs_and_steps_of_inputs() -> None:
    weight = torch.arange(33 * 6, dtype=torch.int8).view(33, 6)
    blocks = pack_blocks(weight)
    assert blocks.shape == (2, 2, 32, 4)
    assert blocks[0, 0, 5].tolist() == weight[5, :4].tolist()
    assert blocks[1, 1, 0].tolist() == [*weight[32, 4:].tolist(), 0, 0]
    assert not blocks[1, :, 1:].any()


def test_onednn_computes_where_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vnni, "load_kernel", lambda: None)
    assert isinstance(build_int8_linear(*make_weights(), exact=True), Int8Linear)


@compiles
def test_where_all_is_there_it_is_taken() -> None:
    assert isinstance(build_int8_linear(*make_weights(), exact=True, relu=True, nonnegative=True), VnniLinear)
