"""Experts: which are chosen, what they compute, and that outputs do not depend on the rest of the batch."""

import math

import pytest
import torch
from torch import Tensor, nn

from saccade.kernels.activations import ACTIVATIONS
from saccade.layers.blocks.experts import (
    Experts,
    Gate,
    GateOutput,
    HierarchicalGate,
    InterLayerExperts,
    assign_blocks,
)

D, H, E, K = 5, 7, 6, 2


def build_experts(
    *, chosen: int = K, count: int = E, noise: bool = True, bias: bool = True, dropout: float = 0.0
) -> Experts:
    torch.manual_seed(3)
    one = Experts(
        D, hidden_dim=H, gate=Gate(D, num_experts=count, top_k=chosen, noise=noise), bias=bias, dropout=dropout
    )
    for name, parameter in one.named_parameters():
        if "gate" in name or "bias" in name:
            nn.init.normal_(parameter)  # zeros would hide mistakes
    return one.double()


def one_by_one(experts: Experts, x: Tensor, choice: GateOutput) -> Tensor:
    """Position by position and expert by expert, as equation 1 says it."""
    rows = []
    for row, chosen, weights in zip(x, choice.experts.tolist(), choice.weights, strict=True):
        total = torch.zeros_like(row)
        for number, weight in zip(chosen, weights, strict=True):
            hidden = row @ experts.up[number]
            hidden = hidden if experts.up_bias is None else hidden + experts.up_bias[number, 0]
            out = ACTIVATIONS[experts.activation](hidden) @ experts.down[number]
            total = total + weight * (out if experts.down_bias is None else out + experts.down_bias[number, 0])
        rows.append(total)
    return torch.stack(rows)


# ---- gates


def test_gates_by_hand() -> None:
    """The two best of four are chosen, and their weights are softmaxed alone: 3 and 1 give 1 / (1 + e^-2)."""
    gate = Gate(1, num_experts=4, top_k=2, noise=False)
    gate.clean.weight.data = torch.tensor([[1.0], [-4.0], [3.0], [0.0]])
    choice = gate(torch.tensor([[1.0], [-1.0]]))
    assert choice.experts.tolist() == [[2, 0], [1, 3]]
    first, second = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-4))
    torch.testing.assert_close(choice.weights, torch.tensor([[first, 1 - first], [second, 1 - second]]))
    assert choice.load.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_a_gate_of_groups_multiplies_two_gates(training: bool) -> None:
    """Shazeer et al. 2017, appendix B: of 3 groups the best 2, and of the 4 experts of each the best 2."""
    gate = HierarchicalGate(D, groups=3, num_experts=12, top_k=2).double().train(training)
    for parameter in gate.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(9, D, dtype=torch.float64)
    torch.manual_seed(2)
    choice = gate(x)
    torch.manual_seed(2)
    first = gate.primary(x)
    clean = (x @ gate.secondary.clean.weight.T).view(9, 3, 4)
    if training:
        spread = torch.nn.functional.softplus(x @ gate.secondary.spread.weight.T).view(9, 3, 4) + 0.01
        clean = clean + torch.randn_like(clean) * spread
    for row in range(9):
        expected = {}
        for group, weight in zip(first.experts[row].tolist(), first.weights[row], strict=True):
            best = clean[row, group].topk(2)
            for expert, share in zip(best.indices.tolist(), best.values.softmax(-1), strict=True):
                expected[4 * group + expert] = float(weight * share)
        found = dict(zip(choice.experts[row].tolist(), choice.weights[row].tolist(), strict=True))
        assert found == pytest.approx(expected)
    torch.testing.assert_close(choice.weights.sum(1), torch.ones(9, dtype=torch.float64))
    assert choice.load.shape == (9, 12) and ((choice.load >= 0) & (choice.load <= 1)).all()
    if not training:
        assert choice.load.sum(1).tolist() == [4.0] * 9


@torch.no_grad()
def test_groups_of_experts_compute_the_sum_of_the_chosen() -> None:
    gate = HierarchicalGate(D, groups=3, num_experts=12, top_k=2)
    one = Experts(D, hidden_dim=H, gate=gate).double().eval()
    for parameter in one.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(7, D, dtype=torch.float64)
    y, choice = one.route(x)
    torch.testing.assert_close(y, one_by_one(one, x, choice), atol=1e-12, rtol=0)
    assert one.experts_per_token == 4 and one.active_fraction == pytest.approx(1 / 3)


@torch.no_grad()
def test_the_load_is_the_probability_to_be_chosen() -> None:
    """With the noise of the others as it is, a gate that draws its own again is chosen in that share of draws."""
    gate = Gate(2, num_experts=4, top_k=2)
    gate.clean.weight.data = torch.tensor([[0.5, 0.0], [0.2, 0.0], [0.0, 0.0], [-0.7, 0.0]])
    x = torch.tensor([[1.0, 0.0]])
    torch.manual_seed(5)
    noise = torch.randn(1, 4)
    torch.manual_seed(5)
    choice = gate(x)
    clean, spread = gate.clean(x), math.log(2) + 0.01  # softplus(0), and the least noise
    noisy = clean + noise * spread
    assert choice.experts.tolist() == noisy.topk(2).indices.tolist()
    draws = torch.randn(20000, generator=torch.Generator().manual_seed(7))
    for number in range(4):
        others = torch.cat((noisy[0, :number], noisy[0, number + 1 :]))
        share = (clean[0, number] + draws * spread > others.topk(2).values[-1]).double().mean()
        assert float(choice.load[0, number]) == pytest.approx(float(share), abs=0.01)


def test_noise_is_for_training_only_and_follows_the_seed() -> None:
    gate, x = Gate(D, num_experts=E, top_k=K), torch.randn(200, D)
    torch.manual_seed(1)
    first, second = gate(x), gate(x)
    torch.manual_seed(1)
    again = gate(x)
    assert torch.equal(first.experts, again.experts) and torch.equal(first.weights, again.weights)
    assert not torch.equal(first.experts, second.experts)
    gate.eval()
    assert torch.equal(gate(x).experts, gate(x).experts)


def test_at_first_all_experts_get_work() -> None:
    torch.manual_seed(1)
    counts = Gate(D, num_experts=E, top_k=K)(torch.randn(3000, D)).experts.flatten().bincount(minlength=E)
    assert counts.min() > 800 and counts.max() < 1200


def test_weights_of_half_the_width_leave_the_gate_as_it_is() -> None:
    """Under autocast gates are computed in float32, so that no two experts become equal."""
    gate = Gate(D, num_experts=E, top_k=K, noise=False)
    x = torch.randn(50, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gate(x)
    assert torch.equal(inside.weights, gate(x).weights)


# ---- places


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_every_pair_has_a_row_of_its_own_in_a_block_of_its_expert(rows: int, count: int) -> None:
    for experts in (torch.rand(rows, count).topk(min(2, count - 1)).indices, torch.zeros(rows, 1, dtype=torch.long)):
        at = assign_blocks(experts, count)
        assert len(set(at.slots.tolist())) == experts.numel()
        assert at.experts[at.slots // at.block_size].tolist() == experts.flatten().tolist()
        assert len(at.experts) < 2 * count
        assert len(at.experts) * at.block_size < 2 * experts.numel() + count


def test_shapes_do_not_depend_on_the_choice() -> None:
    """A CUDA graph holds one shape: all to one expert, or all spread out."""
    one, spread = torch.zeros(64, 1, dtype=torch.long), torch.arange(64)[:, None] % 8
    assert assign_blocks(one, 8).experts.shape == assign_blocks(spread, 8).experts.shape
    assert assign_blocks(one, 8).block_size == assign_blocks(spread, 8).block_size


def test_a_single_position_needs_the_chosen_experts_alone() -> None:
    at = assign_blocks(torch.tensor([[5, 2]]), 8)
    assert sorted(at.experts.tolist()) == [2, 5] and at.block_size == 1


# ---- what they compute


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chosen", [1, 2, 5])
def test_equals_one_by_one_in_values_and_gradients(
    chosen: int, bias: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, as on a CPU, and all blocks in one product, as on a GPU and in graphs."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: at_once)
    experts, x = build_experts(chosen=chosen, bias=bias), torch.randn(23, D, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(11)
    y, choice = experts.route(x)
    expected = one_by_one(experts, x, choice)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)
    weights = [x, *experts.parameters()]
    probe = torch.randn_like(y)
    got, wanted = (torch.autograd.grad((z * probe).sum(), weights, retain_graph=True) for z in (y, expected))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    gates = [float(one.abs().sum()) for one in got[-2:]]  # a single one gets weight 1, whatever the gate says
    assert max(gates) == 0 if chosen == 1 else min(gates) > 0


def test_gradients_are_those_of_small_changes() -> None:
    experts = build_experts(noise=False)
    assert torch.autograd.gradcheck(experts, torch.randn(4, D, dtype=torch.float64, requires_grad=True))


def test_one_expert_for_all_is_a_dense_network() -> None:
    """Where the gate always takes the same expert, nothing is lost: there is no capacity."""
    experts, x = build_experts(chosen=1, noise=False), torch.rand(40, D, dtype=torch.float64)
    experts.gate.clean.weight.data.fill_(-1.0)[3] = 1.0
    hidden = torch.relu(x @ experts.up[3] + experts.up_bias[3])
    torch.testing.assert_close(experts(x), hidden @ experts.down[3] + experts.down_bias[3])


@torch.no_grad()
def test_nobody_depends_on_the_rest_of_the_batch() -> None:
    experts, x = build_experts().eval(), torch.randn(3, 4, D, dtype=torch.float64)
    whole = experts(x)
    assert whole.shape == x.shape
    for row in range(3):
        torch.testing.assert_close(experts(x[row : row + 1]), whole[row : row + 1], atol=1e-14, rtol=0)
        for t in range(4):
            torch.testing.assert_close(experts(x[row, t]), whole[row, t], atol=1e-14, rtol=0)


def test_dropout_is_inside_and_in_training_only() -> None:
    experts, x = build_experts(dropout=0.5, noise=False), torch.randn(9, D, dtype=torch.float64)
    assert not torch.equal(experts(x), experts(x))
    experts.eval()
    assert torch.equal(experts(x), experts(x))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_gives_what_the_products_give_under_autocast(half: torch.dtype) -> None:
    experts, x = build_experts().float().eval(), torch.randn(9, D)
    with torch.autocast("cpu", dtype=half):
        y = experts(x)
    assert y.dtype == half
    torch.testing.assert_close(y.float(), experts(x), atol=0.1, rtol=0.05)


def test_between_layers_they_add_to_what_passes() -> None:
    between, x = InterLayerExperts({2: build_experts().eval()}), torch.randn(3, 4, D, dtype=torch.float64)
    (passed, none), (added, [routing]) = between(1, x), between(2, x)
    assert torch.equal(passed, x) and not none
    torch.testing.assert_close(added, x + between.below["2"](x))
    assert routing.experts is between.below["2"]
