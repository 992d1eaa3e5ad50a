import pytest
import torch
from torch import nn

from saccade.layers.dropout import Dropout, DropPath, make_dropout_mask


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_each_number_is_dropped_with_the_share_and_by_itself(share):
    noise = make_dropout_mask(torch.empty(400, 1001), share)

    dropped = (noise == 0).double()
    deviation = (share * (1 - share)) ** 0.5
    assert dropped.mean().item() == pytest.approx(share, abs=5 * deviation / dropped.numel() ** 0.5)
    for ahead in (1, 2, 3, 4):  # numbers of one draw know nothing of each other, nor of those of the next
        pairs = ((dropped[:, ahead:] - share) * (dropped[:, :-ahead] - share)).mean() / deviation**2
        assert abs(pairs) < 5 / dropped.numel() ** 0.5
    assert noise.unique().tolist() == pytest.approx([0, 1 / (1 - share)], rel=1e-4)
    assert noise.double().mean().item() == pytest.approx(1, abs=5 * deviation / (1 - share) / noise.numel() ** 0.5)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (0, 4)])
def test_any_shape_and_the_same_again_with_the_same_seed(shape):
    x = torch.randn(shape)
    torch.manual_seed(3)
    first = Dropout(0.5)(x)
    torch.manual_seed(3)

    assert torch.equal(Dropout(0.5)(x), first)
    assert first.shape == shape


def test_gradients_pass_where_numbers_do():
    x = torch.randn(5, 7, requires_grad=True)

    y = Dropout(0.4)(x)
    y.sum().backward()

    torch.testing.assert_close(x.grad * x.detach(), y.detach())
    assert 0 < (x.grad == 0).sum() < 35


def test_transposed_numbers_are_dropped_alike():
    x = torch.randn(5, 7)

    y = Dropout(0.5)(x.T)

    assert ((y == 0) | torch.isclose(y, 2 * x.T)).all()


def test_bf16_stays_bf16():
    assert Dropout(0.5)(torch.ones(9, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_nothing_is_dropped_in_use_or_with_a_share_of_zero():
    x = torch.randn(3, 5)

    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


@pytest.mark.cuda
def test_gpu_draws_as_torch_does():
    x = torch.randn(3, 5, device="cuda")
    torch.manual_seed(1)
    expected = nn.Dropout(0.5)(x)
    torch.manual_seed(1)

    assert torch.equal(Dropout(0.5)(x), expected)


def test_whole_rows_are_dropped_and_their_mean_stays():
    torch.manual_seed(1)
    drop, x = DropPath(0.25), torch.ones(4000, 2, 3)
    found = drop(x)
    rows = found.flatten(1)
    assert bool((rows == rows[:, :1]).all())
    assert sorted({round(value, 4) for value in rows[:, 0].tolist()}) == [0.0, 1.3333]
    assert abs(float(found.mean()) - 1) < 0.05
    assert drop.eval()(x) is x
