"""Rows about order: self-attention without positions does not know it, with a mask or positions it does."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.attention.scores import AttentionLayer, attend, scaled_dot
from saccade.lectures.claims import Compared, Measured, at_least, check, measured, near, same
from saccade.lectures.small import apart, block, numbers, shape_of, stack

LARGEST = 6  # items, of which all 720 orders are tried


@check(
    57,
    "S3:757-772, S1:147",
    "Self-attention: queries, keys and values are projections of the same X, and E is N_X x N_X.",
    formula=r"Q = X W_Q, \quad K = X W_K, \quad V = X W_V, \quad E = \frac{Q K^\top}{\sqrt{D_Q}}",
    code=(AttentionLayer, SelfAttention),
)
def self_attention() -> Measured:
    layer, x = AttentionLayer(8, key_dim=8, value_dim=8).double(), numbers(5, 8)
    q, k, v = (x @ w.weight.T for w in (layer.query, layer.key, layer.value))
    many = SelfAttention(8, heads=1, bias=False).double()
    with torch.no_grad():
        for index, part in enumerate((layer.query, layer.key, layer.value)):
            many.project.weight[0, index] = part.weight
        many.heads.out.load_state_dict({"weight": torch.eye(8)})
    by_hand = torch.softmax(q @ k.T / 8**0.5, -1) @ v
    return measured(
        same("shape of E, N_X x N_X", shape_of(scaled_dot(q, k)), "5 x 5"),
        near("the notes' layer against the formula", apart(layer(x), by_hand), 0, within=1e-12),
        near("one head of the Transformer's layer against it", apart(many(x[None])[0], by_hand), 0, within=1e-12),
    )


@check(
    58,
    "S3:883-1092",
    "Self-attention is permutation equivariant: queries, keys, values, weights and outputs are permuted as inputs are.",
    formula=r"f(s(x)) = s(f(x))",
    code=(SelfAttention, attend, masks.causal, Sinusoidal),
)
def equivariance() -> Measured:
    layer, deep = SelfAttention(6, heads=2).double(), stack(6, layers=2)
    worst: dict[str, float] = {}
    for count in range(2, LARGEST + 1):
        x = numbers(count, 6)
        orders = torch.tensor(list(permutations(range(count))))
        before, after = _stages(layer, x[None]), _stages(layer, x[orders])
        before["two blocks"], after["two blocks"] = (deep(y, None)[0] for y in (x[None], x[orders]))
        for name, value in before.items():
            expected = _permuted(value, orders, both=name in ("E", "A"))
            worst[name] = max(worst.get(name, 0.0), apart(after[name], expected))
    compared = [
        near(f"{name}: largest difference, all orders of 2 to {LARGEST} items", value, 0, within=1e-12)
        for name, value in worst.items()
    ]
    return measured(*compared, *_what_breaks_it(layer))


def _stages(layer: SelfAttention, x: Tensor) -> dict[str, Tensor]:
    """What self-attention computes on its way, for the first head."""
    q, k, v = (part[:, :, 0] for part in layer.project(x))
    _, a = attend(q, k, v)
    return {"Q": q, "K": k, "V": v, "E": scaled_dot(q, k), "A": a, "Y": layer(x)}


def _permuted(value: Tensor, orders: Tensor, *, both: bool) -> Tensor:
    """One row in all orders; a matrix of items by items in both directions."""
    rows = value[0][orders]
    return torch.stack([row[:, order] for row, order in zip(rows, orders, strict=True)]) if both else rows


def _what_breaks_it(layer: SelfAttention) -> list[Compared]:
    x, order = numbers(5, 6), torch.tensor([4, 2, 0, 1, 3])
    where = Sinusoidal(6)(torch.arange(5)[None])[0].double()
    with_positions = apart(layer((x[order] + where)[None])[0], layer((x + where)[None])[0][order])
    causal = masks.causal()
    with_mask = apart(layer(x[order][None], mask=causal)[0], layer(x[None], mask=causal)[0][order])
    return [
        at_least("with positional encoding: difference", with_positions, 1e-3),
        at_least("with a causal mask: difference", with_mask, 1e-3),
    ]


@check(
    59,
    "S3:1094-1098",
    "Self-attention works on sets: a pooled output does not change when the inputs are permuted.",
    formula=r"\sum_i f(s(x))_i = \sum_i f(x)_i",
    code=(SelfAttention,),
)
def set_encoder() -> Measured:
    layer, x = stack(6, layers=2), numbers(5, 6)
    orders = torch.tensor(list(permutations(range(5))))
    pooled = layer(x[orders], None)[0].mean(1)
    whole = layer(x[None], None)[0].mean(1).expand_as(pooled)
    return measured(near("largest difference over all 120 orders", apart(pooled, whole), 0, within=1e-12))


@check(
    79,
    "S3:1533-1651",
    "In a block only self-attention mixes positions; layer normalisation and the network work on each vector alone.",
    formula=r"\frac{\partial \, \mathrm{MLP}(x)_i}{\partial x_j} = 0 \quad (i \neq j)",
    code=(block,),
)
def who_mixes() -> Measured:
    layer, x = block(6), numbers(1, 5, 6)
    moved = x.clone()
    moved[0, 2] += 1
    others = [0, 1, 3, 4]
    assert layer.feedforward is not None
    alone = (layer.feedforward, layer.residuals[0].norm)
    apart_alone = [apart(part(moved)[0, others], part(x)[0, others]) for part in alone]
    mixed = (layer.self(moved) - layer.self(x)).detach()[0, others].abs().amax(-1)
    return measured(
        same("network: change at the other positions", apart_alone[0], 0.0),
        same("layer normalisation: change at the other positions", apart_alone[1], 0.0),
        at_least("self-attention: smallest change at another position", float(mixed.min()), 1e-6),
    )


@check(
    86,
    "S2:58-61",
    "Every word is compared with every other in one layer, however far apart.",
    formula=r"\frac{\partial y_i}{\partial x_j} \neq 0 \quad \text{for~all~} i, j",
    code=(SelfAttention,),
)
def all_to_all() -> Measured:
    layer, x = SelfAttention(6, heads=2).double(), numbers(1, 11, 6)
    moved = x.expand(11, -1, -1).clone()
    moved[torch.arange(11), torch.arange(11)] += 1
    seen = (layer(moved) - layer(x)).abs().amax(-1) > 1e-9
    return measured(same("pairs (i, j) in which y_i depends on x_j, of 121", int(seen.sum()), 121))


@check(
    113,
    "S3:731-735",
    "Attention relates target and source, self-attention the elements of one set: the same function, called twice.",
    formula=r"\mathrm{self}(X) = \mathrm{attention}(X, X), \quad \mathrm{cross}(Y, X) = \mathrm{attention}(Y, X)",
    code=(SelfAttention, CrossAttention),
)
def the_same_function() -> Measured:
    own, cross = SelfAttention(6, heads=2).double(), CrossAttention(6, heads=2, memory_dim=6).double()
    with torch.no_grad():
        cross.query.weight.copy_(own.project.weight[:, :1])
        cross.memory.weight.copy_(own.project.weight[:, 1:])
        cross.heads.load_state_dict(own.heads.state_dict())
    x, y = numbers(1, 5, 6), numbers(1, 3, 6)
    difference = apart(cross(x, cross.keys_values(x)), own(x))
    return measured(
        near("cross-attention from X to itself against self-attention", difference, 0, within=1e-12),
        same("shape from 3 targets to 5 sources", shape_of(cross(y, cross.keys_values(x))[0]), "3 x 6"),
    )
