"""The load of experts: counted without padding, and evened out by its loss."""

import pytest
import torch

from saccade.layers.blocks.experts import (
    Between,
    Choice,
    Experts,
    Gate,
    Routing,
    balance_loss,
    busiest,
    relative_load,
    sum_use,
    unevenness,
)
from saccade.layers.packing import packing

D, E = 5, 4
CHOICE = Choice(
    torch.tensor([[0, 1], [0, 2], [3, 1]]),
    torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]),
    torch.tensor([[0.9, 0.9, 0.1, 0.1], [0.8, 0.3, 0.7, 0.2], [0.1, 0.5, 0.4, 1.0]]),
)


def made(balance: float = 0.1) -> Experts:
    return Experts(D, hidden=7, gate=Gate(D, count=E, chosen=2), balance=balance)


def test_uses_by_hand() -> None:
    """Importance is the sum of weights, load the sum of probabilities, and each position counts for k experts."""
    one = made()
    uses = sum_use([Routing(one, CHOICE, None)])
    expected = torch.tensor([[1.25, 0.25, 0.5, 1.0], [1.8, 1.7, 1.2, 1.3], [2, 2, 1, 1]])
    torch.testing.assert_close(uses[one], expected)
    torch.testing.assert_close(relative_load(uses[one]), torch.tensor([4, 4, 2, 2]) / 3)
    assert float(busiest(uses)) == pytest.approx(4 / 3)


def test_the_loss_by_hand() -> None:
    """The variance of 1, 1, 4 is 2 and their mean 2: (standard deviation / mean)^2 = 1/2."""
    assert float(unevenness(torch.tensor([1.0, 1.0, 4.0]))) == pytest.approx(0.5)
    assert float(unevenness(torch.tensor([3.0, 3.0]))) == 0
    assert float(unevenness(torch.zeros(3))) == 0
    even, uneven, half = torch.ones(3), torch.tensor([1.0, 1.0, 4.0]), made(0.5)
    assert float(balance_loss({half: torch.stack((uneven, even, even))})) == pytest.approx(0.25)
    both = {half: torch.stack((even, uneven, even)), made(2.0): torch.stack((uneven, uneven, even))}
    assert float(balance_loss(both)) == pytest.approx(0.25 + 2.0)


def test_padding_is_not_counted() -> None:
    one, real = made(), torch.tensor([True, False, True])
    uses = sum_use([Routing(one, CHOICE, real)])
    assert uses[one][2].tolist() == [1, 2, 0, 1]
    row = packing([2], tokens=3, texts=4)
    uses = sum_use([Routing(one, CHOICE, row.keep)])
    assert uses[one][2].tolist() == [2, 1, 1, 0]


def test_passes_are_summed() -> None:
    one, other = made(), made()
    uses = sum_use([Routing(one, CHOICE, None), Routing(other, CHOICE, None), Routing(one, CHOICE, None)])
    assert uses[one][2].tolist() == [4, 4, 2, 2]
    assert uses[other][2].tolist() == [2, 2, 1, 1]
    assert not sum_use([])


def test_steps_are_counted_as_the_whole() -> None:
    between, x = Between({1: made().eval()}).eval(), torch.randn(3, 4, D)
    real = torch.arange(4) < torch.tensor([[4], [2], [1]])
    torch.nn.init.normal_(between.below["1"].gate.clean.weight)
    choices = [between.routed(1, x[:, t])[1] for t in range(4)]
    steps = between.join_steps([{1: choice} for choice in choices if choice is not None], real)
    [one], [other] = (sum_use(routing).values() for routing in (between(1, x, real)[1], steps))
    assert one[2].sum() == 2 * real.sum()
    torch.testing.assert_close(one, other)


def skewed() -> tuple[Experts, torch.Tensor]:
    """Half of all positions are alike, so that a gate could give them all to the same experts."""
    torch.manual_seed(3)
    one, x = made(), torch.randn(400, D)
    x[:, 0] = 1.0
    one.gate.clean.weight.data[0, 0] = one.gate.clean.weight.data[1, 0] = 2.0
    return one, x


def test_the_loss_evens_out_a_skewed_gate() -> None:
    one, x = skewed()
    optimizer = torch.optim.Adam(one.parameters(), lr=0.02)
    loads = []
    for _ in range(150):
        uses = sum_use([Routing(one, one.routed(x)[1], None)])
        loads.append(float(busiest(uses)))
        optimizer.zero_grad()
        balance_loss(uses).backward()
        optimizer.step()
    assert loads[0] > 1.7 and max(loads[-5:]) < 1.2
    one.eval()
    uses = sum_use([Routing(one, one.routed(x)[1], None)])
    assert float(busiest(uses)) < 1.5


def test_both_parts_of_the_loss_move_the_gate() -> None:
    for part in (0, 1):
        one, x = skewed()
        uses = sum_use([Routing(one, one.routed(x)[1], None)])
        unevenness(uses[one][part]).backward()
        gradient = one.gate.clean.weight.grad
        assert gradient is not None and gradient[0, 0] > 0 and gradient[2, 0] < 0  # descent takes from 0, gives to 2
