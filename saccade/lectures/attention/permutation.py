"""Checks on order: self-attention is permutation equivariant, unless it has positions or a causal mask."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.layers.attention import masks
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.positions import Sinusoidal
from saccade.layers.attention.scores import AttentionLayer, scaled_dot
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.norm import LayerNorm
from saccade.layers.record import record
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import build_causal_mask, weigh
from saccade.lectures.references.comparing import build_padded_batch, build_random_model, compare_model, measure_layer
from saccade.lectures.references.transformer import compute_attention, compute_heads
from saccade.lectures.small import VOCABULARY_SIZE, format_shape, max_difference, randomize_parameters, sample_normal
from saccade.model.build.model import build
from saccade.model.model import Model

MAX_ITEMS = 5  # the check tries all orders of up to 5 items (120)
ORDER = [4, 2, 0, 1, 3]


def build_attention(dim: int = 6, heads: int = 2) -> SelfAttention:
    """Build self-attention in float64 with random parameters, biases included."""
    layer = SelfAttention(dim, heads=heads).double()
    randomize_parameters(layer)
    return layer


@check(
    57,
    "S3:759-772,841, S1:147",
    "Self-attention: queries, keys and values are projections of the same X, and E is N_X x N_X.",
    formula=r"Q = X W_Q, \quad K = X W_K, \quad V = X W_V, \quad E = \frac{Q K^\top}{\sqrt{D_Q}}",
    code=(AttentionLayer, SelfAttention),
    breaks=(
        "uniform-attention",
        "unscaled-scores",
        "queries-from-the-key-matrix",
        "keys-and-values-swapped",
        "doubled-values",
    ),
)
def self_attention() -> CheckResult:
    layer, x = AttentionLayer(8, key_dim=8, value_dim=8).double(), sample_normal(5, 8)
    q, k, v = (x @ w.weight.T for w in (layer.query, layer.key, layer.value))
    many = SelfAttention(8, heads=1, bias=False).double()
    with torch.no_grad():
        for index, part in enumerate((layer.query, layer.key, layer.value)):
            many.project.weight[0, index] = part.weight
        many.heads.out.load_state_dict({"weight": torch.eye(8)})
    by_hand, _ = weigh(q, k, v)
    causal = build_causal_mask(5)
    masked, _ = weigh(q, k, v, allowed=causal)
    return build_result(
        expect_equal("shape of E, N_X x N_X", format_shape(scaled_dot(layer.query(x), layer.key(x))), "5 x 5"),
        expect_near(
            "the layer of the notes: difference from the formula", max_difference(layer(x), by_hand), 0, within=1e-12
        ),
        expect_near(
            "the layer of the notes with a mask: difference from the formula",
            max_difference(layer(x, mask=causal), masked),
            0,
            within=1e-12,
        ),
        expect_near(
            "the Transformer's layer with one head: difference from the formula",
            max_difference(many(x[None])[0], by_hand),
            0,
            within=1e-12,
        ),
        *compare_model(build_random_model(), build_padded_batch()),
    )


@check(
    58,
    "S3:883-1092",
    "Self-attention is permutation equivariant: queries, keys, values, weights and outputs are permuted as inputs are.",
    formula=r"f(s(x)) = s(f(x))",
    code=(SelfAttention, masks.causal, Sinusoidal),
    recipes=("set-encoder",),
    breaks=(
        "uniform-attention",
        "self-attention-always-causal",
        "unmasked-attention",
        "positions-dropped",
        "positions-always-added",
    ),
)
@torch.no_grad()
def equivariance() -> CheckResult:
    layer = build_attention()
    worst: dict[str, float] = {}
    formula = 0.0
    for count in range(2, MAX_ITEMS + 1):
        x = sample_normal(count, 6)
        orders = torch.tensor(list(permutations(range(count))))
        before, after = _compute_stages(layer, x[None]), _compute_stages(layer, x[orders])
        for name, value in before.items():
            expected = _permute(value, orders, both=name in ("E", "A"))
            worst[name] = max(worst.get(name, 0.0), max_difference(after[name], expected))
        formula = max(
            formula,
            max_difference(before["Y"], compute_attention(layer, x[None])),
            max_difference(before["A"], compute_heads(layer, x[None])[0].a),
        )
    compared = [
        expect_near(f"{name}: largest difference over all orders of 2 to {MAX_ITEMS} items", value, 0, within=1e-12)
        for name, value in worst.items()
    ]
    compared.append(expect_near("A and Y: difference from the formula", formula, 0, within=1e-12))
    return build_result(*compared, *_compare_order_dependence(layer))


def _compute_stages(layer: SelfAttention, x: Tensor) -> dict[str, Tensor]:
    """Return the intermediate results of self-attention, for the first head; A are the weights that it records."""
    q, k, v = (part[:, :, 0] for part in layer.project(x))
    with record(layer) as maps:
        layer(x)
    return {"Q": q, "K": k, "V": v, "E": scaled_dot(q, k), "A": next(iter(maps.values()))[:, 0], "Y": layer(x)}


def _permute(value: Tensor, orders: Tensor, *, both: bool) -> Tensor:
    """Permute one row by all orders; with `both`, permute the columns of an items x items matrix too."""
    rows = value[0][orders]
    return torch.stack([row[:, order] for row, order in zip(rows, orders, strict=True)]) if both else rows


def measure_order_dependence(model: Model) -> float:
    """Return how far an encoder's states for permuted words are from its permuted states."""
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    return max_difference(model.reader(ids[:, ORDER], mask).states, model.reader(ids, mask).states[:, ORDER])


def _compare_order_dependence(layer: SelfAttention) -> list[Comparison]:
    x, causal = sample_normal(1, 5, 6), masks.causal()
    with_mask = max_difference(layer(x[:, ORDER], mask=causal), layer(x, mask=causal)[:, ORDER])
    without, sinusoidal = (
        measure_order_dependence(build_random_model([f"reader.positions.kind={kind}"]))
        for kind in ("none", "sinusoidal")
    )
    return [
        expect_at_least("with a causal mask, not equivariant: difference", with_mask, 1e-3),
        expect_at_most("built encoder without positions, equivariant: difference", without, 1e-12),
        expect_at_least("built encoder with positions, not equivariant: difference", sinusoidal, 1e-2),
    ]


@check(
    59,
    "S3:1094-1098",
    "Self-attention works on sets: a pooled output does not change when the inputs are permuted.",
    formula=r"\sum_i f(s(x))_i = \sum_i f(x)_i",
    code=(SelfAttention, build),
    recipes=("set-encoder",),
    breaks=(
        "uniform-attention",
        "self-attention-always-causal",
        "positions-always-added",
        "padding-not-masked",
        "attention-to-itself",
    ),
)
@torch.no_grad()
def set_encoder() -> CheckResult:
    sizes = ("layers=2", "dim=12", "heads=3", "ff=17", "dropout=0.0")
    recipe = load("set-encoder", overrides=[*(f"reader.stack.{size}" for size in sizes), "reader.dropout=0.0"])
    model = build(recipe, source_size=VOCABULARY_SIZE, target_size=2).double().eval()
    randomize_parameters(model)
    orders = torch.tensor(list(permutations(range(5, 10))))
    with_padding = torch.cat((orders, torch.zeros_like(orders[:, :2])), 1)
    whole = torch.ones_like(orders, dtype=torch.bool)
    classes = model.writer(model.reader(orders, whole))
    padded = model.writer(model.reader(with_padding, with_padding > 0))
    others = torch.tensor([[5, 6, 7, 8, 10], [5, 6, 7, 8, 8]])
    other = model.writer(model.reader(others, whole[:2]))
    layer, x = model.reader.stack.blocks[0].self, sample_normal(1, 5, 12)
    return build_result(
        expect_near(
            "the recipe set-encoder: largest difference of its output over all 120 orders",
            max_difference(classes, classes[:1].expand_as(classes)),
            0,
            within=1e-12,
        ),
        expect_near("with two positions of padding: difference", max_difference(padded, classes), 0, within=1e-12),
        expect_at_least(
            "another set: smallest change of the output", float((other - classes[:1]).abs().amax(1).min()), 1e-4
        ),
        expect_near(
            "its self-attention: difference from the formula",
            measure_layer(layer, x),
            0,
            within=1e-12,
        ),
    )


@check(
    79,
    "S3:1533-1651",
    "Only self-attention mixes positions; layer normalisation and the feed-forward network act on each vector alone.",
    formula=r"\frac{\partial \, \mathrm{MLP}(x)_i}{\partial x_j} = 0 \quad (i \neq j)",
    code=(SelfAttention, FeedForward, LayerNorm),
    breaks=(
        "uniform-attention",
        "attention-to-itself",
        "feedforward-mixes-positions",
        "norm-over-positions",
        "self-attention-of-neighbours",
    ),
)
@torch.no_grad()
def who_mixes() -> CheckResult:
    block, x = build_random_model().reader.stack.blocks[0], sample_normal(1, 7, 12)
    moved = x.clone()
    moved[0, 3] += 1
    others = [0, 1, 2, 4, 5, 6]

    def measure_change(part: Any) -> Tensor:
        """How much the output at each of the other positions changes."""
        return (part(moved) - part(x))[0, others].abs().amax(-1)

    network, norms = measure_change(block.feedforward), [measure_change(one.norm) for one in block.residuals]
    mixed = measure_change(block.self)
    expected = (compute_attention(block.self, moved) - compute_attention(block.self, x))[0, others].abs().amax(-1)
    interaction = measure_layer(block.self, x)
    through = float(measure_change(lambda y: block(y)[0]).min())
    silent = block.self.heads.out
    silent.weight.zero_()
    return build_result(
        expect_equal("feed-forward network: change at the other positions", float(network.max()), 0.0),
        expect_equal("layer normalisation: change at the other positions", float(torch.cat(norms).max()), 0.0),
        expect_at_least("self-attention: smallest change at another position", float(mixed.min()), 1e-6),
        expect_near(
            "self-attention: changes, difference from the formula", max_difference(mixed, expected), 0, within=1e-12
        ),
        expect_near("self-attention: difference from the formula", interaction, 0, within=1e-12),
        expect_at_least("the block: smallest change at another position", through, 1e-6),
        expect_equal(
            "the block with W_O = 0: change at the other positions",
            float(measure_change(lambda y: block(y)[0]).max()),
            0.0,
        ),
    )


@check(
    86,
    "S2:58-61",
    "In one self-attention layer every word attends to every other word, at any distance.",
    formula=r"\frac{\partial y_i}{\partial x_j} \neq 0 \quad \text{for~all~} i, j",
    code=(SelfAttention,),
    recipes=("mask-predict", "nat"),
    breaks=(
        "uniform-attention",
        "attention-to-itself",
        "self-attention-of-neighbours",
        "self-attention-always-causal",
        "positions-dropped",
    ),
)
@torch.no_grad()
def all_to_all() -> CheckResult:
    model = build_random_model(["reader.stack.layers=1"])
    layer, x = model.reader.stack.blocks[0].self, sample_normal(1, 11, 12)
    moved = x.expand(11, -1, -1).clone()
    moved[torch.arange(11), torch.arange(11)] += 1
    depends = (layer(moved) - layer(x)).abs().amax(-1) > 1e-9
    weights = torch.stack([head.a[0] for head in compute_heads(layer, x)])
    with record(layer) as maps:
        layer(x)
    compared = next(iter(maps.values()))[0]
    ids = torch.arange(5, 12).repeat(8, 1)
    ids[torch.arange(1, 8), torch.arange(7)] = 15  # the first sentence stays as it is
    states = model.reader(ids, torch.ones_like(ids, dtype=torch.bool)).states
    words = (states[1:] - states[:1]).abs().amax(-1) > 1e-9
    return build_result(
        expect_equal("pairs (i, j) in which y_i depends on x_j, of 121", int(depends.sum()), 121),
        expect_equal("encoder of one layer: pairs of words that depend on each other, of 49", int(words.sum()), 49),
        expect_near(
            "every word compared with every word: weights, difference from softmax(Q K^T / √d)",
            max_difference(compared, weights),
            0,
            within=1e-12,
        ),
        expect_near(
            "output: difference from the formula",
            measure_layer(layer, x),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "notion of position: change of an encoder's states when words are permuted",
            measure_order_dependence(model),
            1e-2,
        ),
    )


@check(
    113,
    "S3:731-735",
    "Attention relates target and source, self-attention the elements of one set: both are the same function.",
    formula=r"\mathrm{self}(X) = \mathrm{attention}(X, X), \quad \mathrm{cross}(Y, X) = \mathrm{attention}(Y, X)",
    code=(SelfAttention, CrossAttention),
    breaks=(
        "uniform-attention",
        "queries-from-the-key-matrix",
        "keys-and-values-swapped",
        "cross-attention-dropped",
        "self-attention-always-causal",
    ),
)
def the_same_function() -> CheckResult:
    own, cross = build_attention(), CrossAttention(6, heads=2, memory_dim=6).double()
    assert own.project.bias is not None
    with torch.no_grad():
        for part, rows in ((cross.query, slice(0, 1)), (cross.memory, slice(1, 3))):
            part.weight.copy_(own.project.weight[:, rows])
            assert part.bias is not None
            part.bias.copy_(own.project.bias[:, rows])
        cross.heads.load_state_dict(own.heads.state_dict())
    x, y = sample_normal(1, 5, 6), sample_normal(1, 3, 6)
    difference = max_difference(cross(x, cross.project_memory(x)), own(x))
    found = cross(y, cross.project_memory(x))
    return build_result(
        expect_near("cross-attention from X to X: difference from self-attention", difference, 0, within=1e-12),
        expect_near(
            "self-attention of X: difference from the formula",
            measure_layer(own, x),
            0,
            within=1e-12,
        ),
        expect_near(
            "cross-attention from Y to X: difference from the formula",
            measure_layer(cross, y, memory=x),
            0,
            within=1e-12,
        ),
        expect_equal("shape of the output for 3 targets and 5 sources", format_shape(found[0]), "3 x 6"),
    )
