"""Check on the sparsely gated mixture of experts of the BLEU table: gate, experts and load balancing."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.layers.blocks.experts import Experts, Gate, Routing, balance_loss, sum_usage
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import relu
from saccade.lectures.small import max_difference, randomize_parameters, sample_normal
from saccade.lectures.systems.deep_recurrent import LENGTHS, SOURCE, TARGET, System, compare_with
from saccade.lectures.systems.systems import build_system
from saccade.model.model import Model
from saccade.train.objectives.objectives import compute_terms, next_token_loss

COUNT, TOP = 8, 2  # experts, and how many each word uses
ROUNDING = 1e-9


def compute_gates(scores: Tensor) -> Tensor:
    """The gate values (N, E) of scores (N, E): a softmax over the two largest, and 0 for all others."""
    kept = scores >= scores.sort(-1, descending=True).values[:, TOP - 1 : TOP]
    exponents = scores.exp() * kept
    return exponents / exponents.sum(-1, keepdim=True)


def mix_experts(group: Any, x: Tensor) -> Tensor:
    """sum_i G(x)_i E_i(x) for x (N, D), with all experts computed for all positions."""
    hidden = relu(torch.einsum("nd,edh->enh", x, group.up) + group.up_bias)
    outputs = torch.einsum("enh,ehd->end", hidden, group.down) + group.down_bias
    return torch.einsum("ne,end->nd", compute_gates(x @ group.gate.clean.weight.T), outputs)


def add_experts(between: Any, number: int, x: Tensor) -> Tensor:
    """x + E(x) below the layers that have experts, for one position or a whole sequence."""
    group = dict(between.below.items()).get(str(number))
    return x if group is None else x + mix_experts(group, x.reshape(-1, x.shape[-1])).view_as(x)


MOE = System(cell="gru", experts=add_experts)


@check(
    118,
    "S4:230",
    "MoE: experts between recurrent layers; a noisy gate chooses two for each word, and a loss balances their load.",
    formula=r"y = \sum_i G(x)_i E_i(x), \quad G(x) = \softmax(\mathrm{top}_k(x W_g + \epsilon \log(1 + e^{x W_n})))",
    code=(Gate, Experts, Routing, balance_loss),
    recipes=("moe",),
    breaks=(
        "experts-without-noise",
        "noise-at-inference",
        "experts-weigh-the-same",
        "one-expert-for-all",
        "experts-left-out",
        "experts-not-balanced",
        "load-counts-padding",
        "uniform-attention",
    ),
)
def mixture_of_experts() -> CheckResult:
    net = build_system("moe")
    randomize_parameters(net)
    group = net.reader.stack.between.below["2"]
    where = [sorted(part.stack.between.below) for part in (net.reader, net.writer)]
    return build_result(
        expect_equal("layers with experts below them: encoder, decoder", str(where), "[['2'], ['1']]"),
        *compare_with(net, MOE, "MoE"),
        *_check_gate(group.gate.train()),
        *_count_experts(group.eval()),
        *_check_balance(net.eval(), group),
    )


@torch.no_grad()
def _check_gate(gate: Gate) -> list[Comparison]:
    """Compare noisy top-k gating in training with equations 3 to 5, and the load with equations 8 and 9."""
    assert gate.spread is not None, "the recipe has noise"
    x, seed = sample_normal(64, 12), 3
    torch.manual_seed(seed)
    found = gate(x)
    torch.manual_seed(seed)
    clean, spread = x @ gate.clean.weight.T, torch.log1p((x @ gate.spread.weight.T).exp()) + 0.01
    noisy = clean + sample_normal(64, COUNT) * spread
    load = torch.empty_like(clean)
    for i in range(COUNT):
        others = torch.cat((noisy[:, :i], noisy[:, i + 1 :]), 1).sort(descending=True).values[:, TOP - 1]
        load[:, i] = (1 + torch.erf((clean[:, i] - others) / spread[:, i] / math.sqrt(2))) / 2
    weights = torch.zeros_like(clean).scatter(1, found.experts, found.weights)
    calm = [gate.eval()(x) for _ in range(2)]
    at_rest = torch.zeros_like(clean).scatter(1, calm[0].experts, calm[0].weights)
    return [
        expect_near(
            "gate in training: difference from the formula",
            max_difference(weights, compute_gates(noisy)),
            0,
            within=ROUNDING,
        ),
        expect_near("load: difference from the formula", max_difference(found.load, load), 0, within=ROUNDING),
        expect_near(
            "gate at inference: difference from the formula without noise",
            max_difference(at_rest, compute_gates(clean)),
            0,
            within=ROUNDING,
        ),
        expect_equal(
            "gate at inference: words whose experts change from call to call",
            int((calm[0].experts != calm[1].experts).any(1).sum()),
            0,
        ),
        expect_near("sum of the gate values of a word", float(weights.sum(1).max()), 1, within=ROUNDING),
        expect_equal(
            "experts of each word", f"{int((weights > 0).sum(1).min())} to {int((weights > 0).sum(1).max())}", "2 to 2"
        ),
        expect_at_least(
            "words of 64 whose experts noise changes",
            int(((weights > 0) != (compute_gates(clean) > 0)).any(1).sum()),
            8,
        ),
    ]


def _count_experts(group: Experts) -> list[Comparison]:
    """Count the experts whose weights get a gradient from the output for one word."""
    grads = torch.autograd.grad(group(sample_normal(1, 12)).square().sum(), (group.up, group.down))
    used = [int((grad.abs().sum((1, 2)) > 0).sum()) for grad in grads]
    return [expect_equal("experts of 8 that one word reaches, by gradient", str(used), "[2, 2]")]


def _check_balance(net: Model, group: Experts) -> list[Comparison]:
    """Compare the load-balancing loss of a batch with CV(importance)^2 + CV(load)^2, and see that it grows."""
    mask = torch.arange(TARGET.shape[1]) < torch.tensor([[6], [3]])  # the second target has padding
    batch = Batch({"source": Tokens(SOURCE, SOURCE > 0), "target": Tokens(TARGET.masked_fill(~mask, 0), mask)})
    objective = functools.partial(next_token_loss, label_smoothing=0.0)
    expected = torch.zeros((), dtype=torch.float64)
    seen: dict[Any, list[Tensor]] = {}

    def listen(between: Any, number: int, x: Tensor) -> Tensor:
        for index, experts in between.below.items():
            if index == str(number):
                seen.setdefault(experts, []).append(x.reshape(-1, 12))
        return add_experts(between, number, x)

    for row, length in enumerate(LENGTHS):
        target = torch.cat((torch.ones(1, dtype=torch.long), TARGET[row, : int(mask[row].sum()) - 1]))
        System(cell="gru", experts=listen).translate(net, SOURCE[row, :length], target)
    for experts, inputs in seen.items():
        gates = compute_gates(torch.cat(inputs) @ experts.gate.clean.weight.T)
        expected = expected + experts.balance * (square_variation(gates.sum(0)) + square_variation((gates > 0).sum(0)))
    found = compute_terms([objective], net, batch, torch.Generator())["balance"].sum
    same = sum_usage([Routing(group, group.gate(sample_normal(1, 12).expand(9, -1)), None)])
    return [
        expect_near(
            "balancing loss of a padded batch: difference from the formula",
            float((found - expected).detach()),
            0,
            within=ROUNDING,
        ),
        expect_near(
            "CV(load)^2 if all words choose the same 2 of 8 experts",
            float(square_variation(same[group][1]).detach()),
            3,
            within=ROUNDING,
        ),
        *_descend(group.train(), same),
    ]


def square_variation(values: Tensor) -> Tensor:
    """(standard deviation / mean)^2."""
    mean = values.double().mean()
    return (values.double() - mean).square().mean() / mean.square()


def _descend(group: Experts, same: Any) -> list[Comparison]:
    """Follow the gradient of the balancing loss in training: it falls, from less than if all words choose the same."""
    x, losses, gate = sample_normal(200, 12), [], group.gate
    assert isinstance(gate, Gate), "the recipe has one gate for all experts"
    for _ in range(20):
        torch.manual_seed(0)
        loss = balance_loss(sum_usage([Routing(group, gate(x), None)])) / group.balance
        (grad,) = torch.autograd.grad(loss + 0 * gate.clean.weight.sum(), gate.clean.weight)
        with torch.no_grad():
            gate.clean.weight -= 0.3 * grad
        losses.append(float(loss.detach()))
    worst = float(balance_loss(same).detach()) / group.balance
    return [
        expect_at_least(
            "balancing loss of random gates after 20 steps down, as a share that is lost",
            1 - losses[-1] / max(losses[0], 1e-9),
            0.5,
        ),
        expect_at_least(
            "the same experts for all words: loss, relative to random gates", worst / max(losses[0], 1e-9), 2
        ),
    ]
