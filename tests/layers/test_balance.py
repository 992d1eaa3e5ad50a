"""The load of experts: counted without padding, and balanced by its loss."""

import pytest
import torch

from saccade.layers.blocks.experts import (
    Experts,
    Gate,
    GateOutput,
    InterLayerExperts,
    Routing,
    balance_loss,
    cv_squared,
    max_relative_load,
    relative_load,
    sum_usage,
)
from saccade.layers.packing import build_packing

D, E = 5, 4
CHOICE = GateOutput(
    torch.tensor([[0, 1], [0, 2], [3, 1]]),
    torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]),
    torch.tensor([[0.9, 0.9, 0.1, 0.1], [0.8, 0.3, 0.7, 0.2], [0.1, 0.5, 0.4, 1.0]]),
)


def build_experts(balance: float = 0.1) -> Experts:
    return Experts(D, hidden_dim=7, gate=Gate(D, num_experts=E, top_k=2), balance=balance)


def test_uses_by_hand() -> None:
    """Importance is the sum of weights, load the sum of probabilities, and each position counts for k experts."""
    one = build_experts()
    uses = sum_usage([Routing(one, CHOICE, None)])
    expected = torch.tensor([[1.25, 0.25, 0.5, 1.0], [1.8, 1.7, 1.2, 1.3], [2, 2, 1, 1]])
    torch.testing.assert_close(uses[one], expected)
    torch.testing.assert_close(relative_load(uses[one]), torch.tensor([4, 4, 2, 2]) / 3)
    assert float(max_relative_load(uses)) == pytest.approx(4 / 3)


def test_the_loss_by_hand() -> None:
    """The variance of 1, 1, 4 is 2 and their mean 2: (standard deviation / mean)^2 = 1/2."""
    assert float(cv_squared(torch.tensor([1.0, 1.0, 4.0]))) == pytest.approx(0.5)
    assert float(cv_squared(torch.tensor([3.0, 3.0]))) == 0
    assert float(cv_squared(torch.zeros(3))) == 0
    even, uneven, half = torch.ones(3), torch.tensor([1.0, 1.0, 4.0]), build_experts(0.5)
    assert float(balance_loss({half: torch.stack((uneven, even, even))})) == pytest.approx(0.25)
    both = {half: torch.stack((even, uneven, even)), build_experts(2.0): torch.stack((uneven, uneven, even))}
    assert float(balance_loss(both)) == pytest.approx(0.25 + 2.0)


def test_padding_is_not_counted() -> None:
    one, real = build_experts(), torch.tensor([True, False, True])
    uses = sum_usage([Routing(one, CHOICE, real)])
    assert uses[one][2].tolist() == [1, 2, 0, 1]
    row = build_packing([2], tokens=3, sequences=4)
    uses = sum_usage([Routing(one, CHOICE, row.keep)])
    assert uses[one][2].tolist() == [2, 1, 1, 0]


def test_passes_are_summed() -> None:
    one, other = build_experts(), build_experts()
    uses = sum_usage([Routing(one, CHOICE, None), Routing(other, CHOICE, None), Routing(one, CHOICE, None)])
    assert uses[one][2].tolist() == [4, 4, 2, 2]
    assert uses[other][2].tolist() == [2, 2, 1, 1]
    assert not sum_usage([])


def test_steps_are_counted_as_the_whole() -> None:
    between, x = InterLayerExperts({1: build_experts().eval()}).eval(), torch.randn(3, 4, D)
    real = torch.arange(4) < torch.tensor([[4], [2], [1]])
    torch.nn.init.normal_(between.below["1"].gate.clean.weight)
    choices = [between.route(1, x[:, t])[1] for t in range(4)]
    steps = between.merge_steps([{1: choice} for choice in choices if choice is not None], real)
    [one], [other] = (sum_usage(routing).values() for routing in (between(1, x, real)[1], steps))
    assert one[2].sum() == 2 * real.sum()
    torch.testing.assert_close(one, other)


def build_skewed_experts() -> tuple[Experts, torch.Tensor]:
    """Half of all positions are alike, so that a gate could give them all to the same experts."""
    torch.manual_seed(3)
    one, x = build_experts(), torch.randn(400, D)
    x[:, 0] = 1.0
    one.gate.clean.weight.data[0, 0] = one.gate.clean.weight.data[1, 0] = 2.0
    return one, x


def test_the_loss_balances_a_skewed_gate() -> None:
    one, x = build_skewed_experts()
    optimizer = torch.optim.Adam(one.parameters(), lr=0.02)
    loads = []
    for _ in range(150):
        uses = sum_usage([Routing(one, one.route(x)[1], None)])
        loads.append(float(max_relative_load(uses)))
        optimizer.zero_grad()
        balance_loss(uses).backward()
        optimizer.step()
    assert loads[0] > 1.7 and max(loads[-5:]) < 1.2
    one.eval()
    uses = sum_usage([Routing(one, one.route(x)[1], None)])
    assert float(max_relative_load(uses)) < 1.5


def test_both_parts_of_the_loss_move_the_gate() -> None:
    for part in (0, 1):
        one, x = build_skewed_experts()
        uses = sum_usage([Routing(one, one.route(x)[1], None)])
        cv_squared(uses[one][part]).backward()
        gradient = one.gate.clean.weight.grad
        assert gradient is not None and gradient[0, 0] > 0 and gradient[2, 0] < 0  # descent takes from 0, gives to 2
