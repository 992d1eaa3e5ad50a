"""Checks on order: self-attention is permutation equivariant, unless it has positions or a causal mask."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.attention.scores import AttentionLayer, attend, scaled_dot
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.small import build_block, build_stack, format_shape, max_difference, sample_normal

MAX_ITEMS = 6  # the check tries all orders of up to 6 items (720)


@check(
    57,
    "S3:757-772, S1:147",
    "Self-attention: queries, keys and values are projections of the same X, and E is N_X x N_X.",
    formula=r"Q = X W_Q, \quad K = X W_K, \quad V = X W_V, \quad E = \frac{Q K^\top}{\sqrt{D_Q}}",
    code=(AttentionLayer, SelfAttention),
)
def self_attention() -> CheckResult:
    layer, x = AttentionLayer(8, key_dim=8, value_dim=8).double(), sample_normal(5, 8)
    q, k, v = (x @ w.weight.T for w in (layer.query, layer.key, layer.value))
    many = SelfAttention(8, heads=1, bias=False).double()
    with torch.no_grad():
        for index, part in enumerate((layer.query, layer.key, layer.value)):
            many.project.weight[0, index] = part.weight
        many.heads.out.load_state_dict({"weight": torch.eye(8)})
    by_hand = torch.softmax(q @ k.T / 8**0.5, -1) @ v
    return build_result(
        expect_equal("shape of E, N_X x N_X", format_shape(scaled_dot(q, k)), "5 x 5"),
        expect_near(
            "the layer of the notes: difference from the formula", max_difference(layer(x), by_hand), 0, within=1e-12
        ),
        expect_near(
            "the Transformer's layer with one head: difference from the formula",
            max_difference(many(x[None])[0], by_hand),
            0,
            within=1e-12,
        ),
    )


@check(
    58,
    "S3:883-1092",
    "Self-attention is permutation equivariant: queries, keys, values, weights and outputs are permuted as inputs are.",
    formula=r"f(s(x)) = s(f(x))",
    code=(SelfAttention, attend, masks.causal, Sinusoidal),
)
def equivariance() -> CheckResult:
    layer, deep = SelfAttention(6, heads=2).double(), build_stack(6, layers=2)
    worst: dict[str, float] = {}
    for count in range(2, MAX_ITEMS + 1):
        x = sample_normal(count, 6)
        orders = torch.tensor(list(permutations(range(count))))
        before, after = _compute_stages(layer, x[None]), _compute_stages(layer, x[orders])
        before["two blocks"], after["two blocks"] = (deep(y, None)[0] for y in (x[None], x[orders]))
        for name, value in before.items():
            expected = _permute(value, orders, both=name in ("E", "A"))
            worst[name] = max(worst.get(name, 0.0), max_difference(after[name], expected))
    compared = [
        expect_near(f"{name}: largest difference over all orders of 2 to {MAX_ITEMS} items", value, 0, within=1e-12)
        for name, value in worst.items()
    ]
    return build_result(*compared, *_compare_order_dependence(layer))


def _compute_stages(layer: SelfAttention, x: Tensor) -> dict[str, Tensor]:
    """Return the intermediate results of self-attention, for the first head."""
    q, k, v = (part[:, :, 0] for part in layer.project(x))
    _, a = attend(q, k, v)
    return {"Q": q, "K": k, "V": v, "E": scaled_dot(q, k), "A": a, "Y": layer(x)}


def _permute(value: Tensor, orders: Tensor, *, both: bool) -> Tensor:
    """Permute one row by all orders; with `both`, permute the columns of an items x items matrix too."""
    rows = value[0][orders]
    return torch.stack([row[:, order] for row, order in zip(rows, orders, strict=True)]) if both else rows


def _compare_order_dependence(layer: SelfAttention) -> list[Comparison]:
    x, order = sample_normal(5, 6), torch.tensor([4, 2, 0, 1, 3])
    where = Sinusoidal(6)(torch.arange(5)[None])[0].double()
    with_positions = max_difference(layer((x[order] + where)[None])[0], layer((x + where)[None])[0][order])
    causal = masks.causal()
    with_mask = max_difference(layer(x[order][None], mask=causal)[0], layer(x[None], mask=causal)[0][order])
    return [
        expect_at_least("with positional encoding, not equivariant: difference", with_positions, 1e-3),
        expect_at_least("with a causal mask, not equivariant: difference", with_mask, 1e-3),
    ]


@check(
    59,
    "S3:1094-1098",
    "Self-attention works on sets: a pooled output does not change when the inputs are permuted.",
    formula=r"\sum_i f(s(x))_i = \sum_i f(x)_i",
    code=(SelfAttention,),
)
def set_encoder() -> CheckResult:
    layer, x = build_stack(6, layers=2), sample_normal(5, 6)
    orders = torch.tensor(list(permutations(range(5))))
    pooled = layer(x[orders], None)[0].mean(1)
    whole = layer(x[None], None)[0].mean(1).expand_as(pooled)
    return build_result(
        expect_near("largest difference over all 120 orders", max_difference(pooled, whole), 0, within=1e-12)
    )


@check(
    79,
    "S3:1533-1651",
    "Only self-attention mixes positions; layer normalisation and the feed-forward network act on each vector alone.",
    formula=r"\frac{\partial \, \mathrm{MLP}(x)_i}{\partial x_j} = 0 \quad (i \neq j)",
    code=(build_block,),
)
def who_mixes() -> CheckResult:
    layer, x = build_block(6), sample_normal(1, 5, 6)
    moved = x.clone()
    moved[0, 2] += 1
    others = [0, 1, 3, 4]
    assert layer.feedforward is not None
    alone = (layer.feedforward, layer.residuals[0].norm)
    apart_alone = [max_difference(part(moved)[0, others], part(x)[0, others]) for part in alone]
    mixed = (layer.self(moved) - layer.self(x)).detach()[0, others].abs().amax(-1)
    return build_result(
        expect_equal("feed-forward network: change at the other positions", apart_alone[0], 0.0),
        expect_equal("layer normalisation: change at the other positions", apart_alone[1], 0.0),
        expect_at_least("self-attention: smallest change at another position", float(mixed.min()), 1e-6),
    )


@check(
    86,
    "S2:58-61",
    "In one self-attention layer every word attends to every other word, at any distance.",
    formula=r"\frac{\partial y_i}{\partial x_j} \neq 0 \quad \text{for~all~} i, j",
    code=(SelfAttention,),
)
def all_to_all() -> CheckResult:
    layer, x = SelfAttention(6, heads=2).double(), sample_normal(1, 11, 6)
    moved = x.expand(11, -1, -1).clone()
    moved[torch.arange(11), torch.arange(11)] += 1
    depends = (layer(moved) - layer(x)).abs().amax(-1) > 1e-9
    return build_result(expect_equal("pairs (i, j) in which y_i depends on x_j, of 121", int(depends.sum()), 121))


@check(
    113,
    "S3:731-735",
    "Attention relates target and source, self-attention the elements of one set: both are the same function.",
    formula=r"\mathrm{self}(X) = \mathrm{attention}(X, X), \quad \mathrm{cross}(Y, X) = \mathrm{attention}(Y, X)",
    code=(SelfAttention, CrossAttention),
)
def the_same_function() -> CheckResult:
    own, cross = SelfAttention(6, heads=2).double(), CrossAttention(6, heads=2, memory_dim=6).double()
    with torch.no_grad():
        cross.query.weight.copy_(own.project.weight[:, :1])
        cross.memory.weight.copy_(own.project.weight[:, 1:])
        cross.heads.load_state_dict(own.heads.state_dict())
    x, y = sample_normal(1, 5, 6), sample_normal(1, 3, 6)
    difference = max_difference(cross(x, cross.project_memory(x)), own(x))
    return build_result(
        expect_near("cross-attention from X to X: difference from self-attention", difference, 0, within=1e-12),
        expect_equal(
            "shape of the output for 3 targets and 5 sources",
            format_shape(cross(y, cross.project_memory(x))[0]),
            "3 x 6",
        ),
    )
