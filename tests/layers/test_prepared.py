import pytest
import torch
from torch import nn

from saccade.kernels.cpu import prepared
from saccade.kernels.cpu.prepared import (
    ActivationQuantizer,
    Int8Embedding,
    Int8Linear,
    PackedLinear,
    PreparedHeadProjection,
    quantize_weight,
    reorder_by_part,
)
from saccade.layers.attention.multihead import HeadProjection

K, N = 37, 53

pytestmark = pytest.mark.skipif(not prepared.is_available(), reason="needs a torch with oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("size", [(K, N), (N, K), (7 * K, 7 * N), (7 * N, 7 * K)])  # small and large
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (4, 1), (2, 7)])
def test_packed_weights_give_the_same_product(
    shape: tuple[int, int], size: tuple[int, int], single: bool, bias: bool
) -> None:
    linear, x = nn.Linear(*size, bias=bias), torch.randn(*shape, size[0])
    with torch.inference_mode():
        y = PackedLinear(linear.weight, linear.bias, single_row=single)(x)
        torch.testing.assert_close(y, linear(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("width", [K, 64])  # the few rows of a width of whole steps go another way
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 64])
def test_int8_is_within_the_error_of_its_steps(rows: int, width: int, exact: bool) -> None:
    sizes = 10.0 ** torch.arange(-2, 3).repeat(13)[:rows, None]
    linear, x = nn.Linear(width, N), torch.randn(rows, width) * sizes
    with torch.inference_mode():
        y = Int8Linear(*quantize_weight(linear.weight), linear.bias, exact=exact)(x)
        # Half a step of x for each of K weights, half a step of each weight (and its scale's rounding) for each of x.
        steps = x.abs().amax(1, keepdim=True) / 127, linear.weight.abs().amax(1) / 126
        bound = (steps[0] * linear.weight.abs().sum(1) + x.abs().sum(1, keepdim=True) * steps[1]) / 2
        assert ((y - linear(x)).abs() <= bound + 1e-5).all()
        assert not torch.equal(y, linear(x))


def test_each_row_has_its_own_scale() -> None:
    linear, x = nn.Linear(K, N), torch.randn(11, K)
    layer = Int8Linear(*quantize_weight(linear.weight.detach()), None)
    with torch.inference_mode():
        alone, beside = layer(x), layer(torch.cat((x, 1e6 * torch.randn(5, K))))[:11]
    assert torch.equal(alone, beside)


def test_a_row_of_zeros_gives_the_bias() -> None:
    linear = nn.Linear(K, N)
    with torch.inference_mode():
        for rows in (2, 9):
            y = Int8Linear(*quantize_weight(linear.weight), linear.bias, exact=True)(torch.zeros(rows, K))
            torch.testing.assert_close(y, linear.bias.expand(rows, -1), rtol=0, atol=0)


def test_bytes_are_rounded_to_the_nearest() -> None:
    x, rounding = (
        torch.tensor([[-127.0, 127.0, 0.0, 0.49, 0.51, -0.49, -0.51, 63.6]]),
        ActivationQuantizer(8, nonnegative=False),
    )
    assert rounding.quantize(x, rounding.compute_row_max(x)).tolist() == [[1, 255, 128, 128, 129, 128, 127, 192]]


def test_all_bytes_serve_what_is_never_negative() -> None:
    x, rounding = torch.tensor([[0.0, 255.0, 0.49, 0.51, 127.6]]), ActivationQuantizer(5, nonnegative=True)
    assert rounding.quantize(x, rounding.compute_row_max(x)).tolist() == [[0, 255, 0, 1, 128]]


def test_the_largest_is_that_on_both_sides_of_few_and_of_many_numbers() -> None:
    x, rounding = torch.tensor([[1.0, -3.0], [2.0, -1.0]]), ActivationQuantizer(2, nonnegative=False)
    many = x.repeat(prepared.MIN_TWO_PASS_ELEMENTS // x.numel(), 1)
    assert rounding.compute_row_max(x).tolist() == rounding.compute_row_max(many)[:2].tolist() == [[3.0], [2.0]]


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_relu_is_part_of_a_product_and_the_next_one_takes_only_what_it_leaves(rows: int) -> None:
    up, down, x = nn.Linear(64, N), nn.Linear(N, 64), torch.randn(rows, 64)
    with torch.inference_mode():
        hidden = torch.relu(up(x))
        for single in (True, False):
            exact = PackedLinear(up.weight, up.bias, single_row=single, relu=True)(x)
            torch.testing.assert_close(exact, hidden, rtol=1e-5, atol=1e-5)
        near = Int8Linear(*quantize_weight(up.weight), up.bias, relu=True)(x)
        assert (near >= 0).all()
        torch.testing.assert_close(near, hidden, rtol=0, atol=0.05)
        layer = Int8Linear(*quantize_weight(down.weight), down.bias, nonnegative=True)
        torch.testing.assert_close(layer(hidden), down(hidden), rtol=0, atol=0.02)


def test_quantised_weights_are_near_and_their_scale_is_short() -> None:
    weight = torch.cat((torch.randn(N, K), torch.zeros(1, K)))
    whole, scale = quantize_weight(weight)
    assert torch.equal(scale, scale.bfloat16().float())
    assert ((whole * scale[:, None] - weight).abs() <= scale[:, None] * 0.51 + weight.abs() / 256).all()


def test_without_vnni_no_sum_of_two_products_leaves_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    whole, scale = quantize_weight(torch.randn(N, K))
    narrow, wide = prepared._avoid_overflow(whole, scale)
    assert narrow.abs().max() * 2 * 255 < 2**15
    assert ((narrow * wide[:, None] - whole * scale[:, None]).abs() <= scale[:, None]).all()


def test_prepared_heads_stand_where_a_projection_stood() -> None:
    project, x = HeadProjection(12, heads=3, head_dim=5, parts=2, form="paper", bias=True), torch.randn(2, 7, 12)
    weight, bias = (
        reorder_by_part(part, project.shape) for part in (project.weight.flatten(0, 2), project.bias.flatten())
    )
    product = PackedLinear(weight, bias)
    with torch.inference_mode():
        for got, expected in zip(PreparedHeadProjection(product, project.shape)(x), project(x), strict=True):
            torch.testing.assert_close(got, expected)


def test_a_table_of_integers_is_near_the_table() -> None:
    table, ids = nn.Embedding(N, K), torch.tensor([[3, 0], [52, 3]])
    whole, scale = quantize_weight(table.weight.detach())
    with torch.inference_mode():
        assert ((Int8Embedding(whole, scale)(ids) - table(ids)).abs() <= scale[ids][..., None]).all()


def test_weights_that_begin_at_an_odd_address_are_taken_as_well() -> None:
    """As those do that were read from a file."""
    torch.manual_seed(0)
    weight, scale = quantize_weight(torch.randn(64, 64))
    buffer = torch.empty(64 * 64 + 63, dtype=torch.int8)
    shift = (44 - buffer.data_ptr()) % 64
    odd = buffer[shift : shift + 64 * 64].view(64, 64).copy_(weight)
    assert odd.data_ptr() % 64 == 44
    x = torch.randn(4, 64)
    torch.testing.assert_close(Int8Linear(odd, scale, None)(x), Int8Linear(weight, scale, None)(x))
