"""Checks on attention scores: equal widths, scaling by the square root of the width, what is trained, an example."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from saccade.config.training import Optimizer
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.scores import AttentionLayer, attend, dot, scaled_dot
from saccade.lectures.attention.pooling import compare_ways
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
from saccade.lectures.drawing import Lines
from saccade.lectures.references.basics import weigh
from saccade.lectures.references.comparing import (
    attend_in_layer,
    build_padded_batch,
    build_random_model,
    build_word_predictor,
    compare_model,
)
from saccade.lectures.references.transformer import compute_heads
from saccade.lectures.small import fit_exponent, format_shape, max_difference, sample_normal
from saccade.lectures.trace import trace_example, trace_run
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.optimizer import build_optimizer, set_learning_rate

WIDTHS = [16, 64, 256, 1024, 4096]
SAMPLES = 1000
STANDARD_ERRORS = 4  # tolerance of a mean or a variance


@check(
    36,
    "S3:440-455",
    "The dot product needs queries and inputs of equal width, D_X = D_Q; the error message names both.",
    formula=r"e_i = q \cdot X_i, \quad D_X = D_Q",
    code=(dot, CrossAttention),
    breaks=(
        "uniform-attention",
        "widths-not-compared",
        "dot-products-scaled",
        "dot-products-without-the-last-feature",
        "doubled-values",
    ),
)
def one_width() -> CheckResult:
    try:
        attend(sample_normal(1, 5), sample_normal(3, 7), sample_normal(3, 7), score=dot)
        named = "nothing"
    except ValueError as error:
        named = ", ".join(part for part in ("D_Q = 5", "D_X = 7") if part in str(error))
    q, x = sample_normal(3, 5), sample_normal(7, 5)
    by_hand = torch.stack([torch.stack([sum(a * b for a, b in zip(i, j, strict=True)) for j in x]) for i in q])
    return build_result(
        expect_equal("what the error names", named, "D_Q = 5, D_X = 7"),
        expect_near("e: difference from the sum of products", max_difference(dot(q, x), by_hand), 0, within=1e-12),
        *compare_ways(q, x, x, scaled=False),
    )


@check(
    37,
    "S3:463-484,507",
    "The scaled dot product divides by the square root of the width.",
    formula=r"e_i = \frac{q \cdot X_i}{\sqrt{D_Q}}",
    code=(scaled_dot, SelfAttention),
    breaks=(
        "uniform-attention",
        "unscaled-scores",
        "scores-divided-by-the-width",
        "scores-scaled-by-the-model-width",
        "dot-products-scaled",
    ),
)
def scaled_dot_product() -> CheckResult:
    q, x = sample_normal(3, 9), sample_normal(5, 9)
    by_hand = torch.tensor(
        [[sum(a * b for a, b in zip(i, j, strict=True)) / 3 for j in x.tolist()] for i in q.tolist()],
        dtype=torch.float64,
    )
    return build_result(
        expect_near(
            "largest difference from q · X / 3 at D_Q = 9",
            max_difference(scaled_dot(q, x), by_hand),
            0,
            within=1e-12,
        ),
        *compare_ways(q, x, x),
        *compare_model(build_random_model(), build_padded_batch()),
    )


@check(
    38,
    "S3:494-503",
    "Large scores saturate the softmax, and its gradient vanishes; dividing by the root of the width prevents this.",
    formula=r"\frac{\partial a}{\partial e} = \mathrm{diag}(a) - a a^\top, \quad |a| = a \sqrt{D}",
    code=(attend, scaled_dot, dot),
    breaks=("uniform-attention", "unscaled-scores", "dot-products-scaled", "attention-without-gradient"),
)
def saturation() -> CheckResult:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    formula = 0.0
    for name, score in (("without scaling", dot), ("scaled", scaled_dot)):
        found = [_measure_gradients(score, width) for width in WIDTHS]
        curves[f"da/de, {name}"] = ([*map(float, WIDTHS)], [one[0] for one in found])
        curves[f"da/dq, {name}"] = ([*map(float, WIDTHS)], [one[1] for one in found])
        formula = max(formula, *(one[2] for one in found))
    unscaled, scaled = curves["da/de, without scaling"][1], curves["da/de, scaled"][1]
    by_query = curves["da/dq, without scaling"][1]
    ones = [float(scaled_dot(torch.ones(1, d).double(), torch.ones(1, d).double())) for d in WIDTHS]
    q, x = torch.randn(40, 256).double(), torch.randn(10, 256).double()
    peaks = [attend_in_layer(q, x, x, scaled=scaled).a.amax(1).median() for scaled in (False, True)]
    caption = "Median norm of the softmax's Jacobian (10 keys) against the width D: it vanishes only without scaling."
    return build_result(
        expect_near("da/de: difference from diag(a) - a a^T", formula, 0, within=1e-5),
        expect_at_most("without scaling: |da/de| at D = 4096 over that at D = 16", unscaled[-1] / unscaled[0], 0.01),
        expect_near("scaled: |da/de| at D = 4096 over that at D = 16", scaled[-1] / scaled[0], 1, within=0.2),
        expect_at_least("without scaling: |da/dq| over |da/de| at D = 16", by_query[0] / unscaled[0], 3),
        expect_at_least(
            "multi-head attention without scaling, D = 256: median of the largest of 10 weights", float(peaks[0]), 0.95
        ),
        expect_at_most("with scaling", float(peaks[1]), 0.6),
        *compare_ways(q[:3], x, x),
        expect_near(
            "constant vectors: exponent with which scaled scores grow with D",
            fit_exponent(WIDTHS, ones),
            0.5,
            within=1e-6,
        ),
        drawing=Lines("D", "median norm", curves, caption, log_x=True, log_y=True),
        note="The slide's constant vectors are an illustration only: divided by √D their scores still grow as √D. "
        "The argument of the paper is the variance (row 39).",
    )


def _measure_gradients(score: Any, width: int) -> tuple[float, float, float]:
    """Return the median norms of da/de and da/dq for 10 random keys, and how far da/de is from the formula."""
    q, x = torch.randn(60, 1, width), torch.randn(60, 10, width)
    q.requires_grad_()
    offsets = torch.zeros(60, 1, 10, requires_grad=True)  # added to e
    a = attend(q, x, x, score=lambda query, key: score(query, key) + offsets)[1][:, 0]
    rows = [
        torch.autograd.grad(a[:, i].sum(), (offsets, q), retain_graph=True, allow_unused=True, materialize_grads=True)
        if a.requires_grad
        else (torch.zeros_like(offsets), torch.zeros_like(q))
        for i in range(10)
    ]
    by_score, by_query = (torch.cat([row[i] for row in rows], 1).double() for i in range(2))
    kept = weigh(q.detach(), x, x, scale=1.0 if score is dot else None)[1][:, 0].double()
    expected = torch.diag_embed(kept) - kept[:, :, None] * kept[:, None, :]
    tiny = 1e-30  # a logarithmic axis cannot show 0
    medians = [max(tiny, float(m.flatten(1).norm(dim=1).median())) for m in (by_score, by_query)]
    return medians[0], medians[1], max_difference(by_score, expected)


@check(
    39,
    "S3:525, S4:50-53",
    "For independent features of mean 0 and variance 1, q · k has mean 0 and variance d; divided by √d, variance 1.",
    formula=r"\E(q \cdot k) = 0, \quad \Var(q \cdot k) = d, \quad \Var(\frac{q \cdot k}{\sqrt{d}}) = 1",
    code=(dot, scaled_dot, CrossAttention),
    breaks=(
        "uniform-attention",
        "unscaled-scores",
        "scores-divided-by-the-width",
        "dot-products-scaled",
        "weights-not-normalized",
    ),
)
def variance() -> CheckResult:
    compared, raw, kept = [], [], []
    for width in WIDTHS:
        q, k = torch.randn(SAMPLES, 1, width), torch.randn(SAMPLES, 1, width)
        plain, scaled_scores = dot(q, k).flatten().double(), scaled_dot(q, k).flatten().double()
        raw.append(float(plain.var()))
        kept.append(float(scaled_scores.var()))
        compared += _compare_moments(f"d = {width}: ", plain, width)
        error = STANDARD_ERRORS * _compute_variance_error(scaled_scores)
        compared.append(expect_near(f"d = {width}: variance after scaling", kept[-1], 1, within=error))
    wide = [*map(float, WIDTHS)]
    caption = f"Variance of q · k over {SAMPLES:,} random pairs: it equals the width d, and 1 after division by √d."
    curves = {"q · k": (wide, raw), "q · k / √d": (wide, kept)}
    return build_result(
        *compared,
        *(_compare_spread(width) for width in (16, 256)),
        *compare_ways(sample_normal(3, 16), sample_normal(5, 16), sample_normal(5, 16)),
        drawing=Lines("d", "variance", curves, caption, log_x=True, log_y=True),
    )


def _compare_spread(width: int) -> Comparison:
    """Expect the scores of multi-head attention, log a + a constant for each query, to have variance 1."""
    q, k = sample_normal(100, width), sample_normal(60, width)
    layer = attend_in_layer(q, k, k)
    logs = layer.a.clamp(min=1e-30).log()
    summed = float((layer.a.sum(1) - 1).abs().max())
    spread = float(logs.var(1).mean()) + summed  # weights that are no distribution have no scores
    return expect_near(f"multi-head attention, d = {width}: variance of its scores", spread, 1, within=0.15)


def _compare_moments(name: str, scores: Tensor, width: int) -> list[Comparison]:
    """Expect mean 0 and variance d, each within four standard errors."""
    error = STANDARD_ERRORS * math.sqrt(width / len(scores))
    limit = STANDARD_ERRORS * _compute_variance_error(scores)
    return [
        expect_near(f"{name}mean", float(scores.mean()), 0, within=error),
        expect_near(f"{name}variance", float(scores.var()), width, within=limit),
    ]


def _compute_variance_error(scores: Tensor) -> float:
    """The standard error of a variance: √((m4 - m2²) / n)."""
    centred = scores - scores.mean()
    m2, m4 = (centred**2).mean(), (centred**4).mean()
    return float(((m4 - m2**2) / len(scores)).sqrt())


@check(
    47,
    "S2:92-100",
    "W_V, W_Q and W_K are trained; length, widths, number of heads and positions are hyperparameters.",
    formula=r"W^V, W^Q, W^K; \quad L, d_k, d_v, h",
    code=(AttentionLayer, SelfAttention, build_optimizer),
    breaks=(
        "uniform-attention",
        "attention-without-gradient",
        "projections-not-trained",
        "key-and-value-widths-swapped",
        "heads-of-full-width",
    ),
)
def what_is_trained() -> CheckResult:
    layer, x = AttentionLayer(16, key_dim=5, value_dim=7).double(), sample_normal(11, 16)
    named = {"W^V": layer.value.weight, "W^Q": layer.query.weight, "W^K": layer.key.weight}
    copies = {name: weight.detach().clone().requires_grad_() for name, weight in named.items()}
    made = layer(x)
    direction = sample_normal(*made.shape)
    by_hand = weigh(x @ copies["W^Q"].T, x @ copies["W^K"].T, x @ copies["W^V"].T)[0]
    (made * direction).sum().backward()
    (by_hand * direction).sum().backward()
    optimizer = build_optimizer(Optimizer(), layer)
    set_learning_rate(optimizer, 0.01)
    optimizer.step()
    compared = []
    for name, weight in named.items():
        expected = copies[name].grad
        assert expected is not None
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        step = copies[name].detach() - weight.detach()  # Adam's first step is the rate times the gradient's sign
        compared += [
            expect_near(
                f"{name}: gradient, difference from that of the formula",
                max_difference(gradient, expected),
                0,
                within=1e-12,
            ),
            expect_near(
                f"{name}: first step of the optimizer, difference from rate times sign of the gradient",
                max_difference(step, 0.01 * expected.sign()),
                0,
                within=1e-5,
            ),
        ]
    names = ", ".join(name for name, _ in layer.named_parameters())
    sizes = ", ".join(format_shape(weight.T) for weight in named.values())
    return build_result(
        expect_equal("parameters of the single-head layer", names, "query.weight, key.weight, value.weight"),
        expect_equal("W^V, W^Q and W^K for d_v = 7, d_k = 5", sizes, "16 x 7, 16 x 5, 16 x 5"),
        *compared,
        _compare_training(),
        *_compare_hyperparameters(),
    )


def _compare_training() -> Comparison:
    """Expect one training step of a built model to change W_Q, W_K and W_V of every head and layer."""
    model, changed = build_random_model(), 0
    layers = [m.project for m in model.modules() if isinstance(m, SelfAttention)]
    layers += [part for m in model.modules() if isinstance(m, CrossAttention) for part in (m.query, m.memory)]
    before = [layer.weight.detach().clone() for layer in layers]
    optimizer = build_optimizer(Optimizer(), model)
    set_learning_rate(optimizer, 0.01)
    next_token_loss(model, build_padded_batch(), torch.Generator())["next-token"].sum.backward()
    optimizer.step()
    for layer, old in zip(layers, before, strict=True):
        changed += int(((layer.weight.detach() - old).flatten(2).abs().amin(-1) > 1e-4).sum())
    return expect_equal("matrices of 6 attention layers x 3 heads that one training step changes", changed, 54)


def _compare_hyperparameters() -> list[Comparison]:
    """Change each hyperparameter in the recipe, and look at the model that is built."""

    def get_matrices(*changes: str) -> str:
        return format_shape(build_random_model(list(changes)).reader.stack.blocks[0].self.project.weight)

    positions = "reader.positions={kind='learned', length=9}"
    model = build_random_model([positions, "data.max_length=9"])
    ids = torch.full((1, 10), 7)
    try:
        model.reader(ids, torch.ones_like(ids, dtype=torch.bool))
        longest = "no limit"
    except SaccadeError:
        longest = format_shape(model.reader.embedding.positions.table.weight)
    return [
        expect_equal("3 heads: heads x (Q, K, V) x d_k x D", get_matrices(), "3 x 3 x 4 x 12"),
        expect_equal("heads = 2", get_matrices("reader.stack.heads=2"), "2 x 3 x 6 x 12"),
        expect_equal("d_k = d_v = 5", get_matrices("reader.stack.head_dim=5"), "3 x 3 x 5 x 12"),
        expect_equal("L = 9, learned positions: table; the tenth word is refused", longest, "9 x 12"),
    ]


@check(
    48,
    "S2:112-132",
    "A worked example: scores 112 and 96, divided by 8 = √64, give attention weights 0.88 and 0.12.",
    formula=r"\softmax(\frac{112}{8}, \frac{96}{8}) = (0.88, 0.12)",
    code=(AttentionLayer, scaled_dot, attend, trace_example, trace_run),
    breaks=(
        "uniform-attention",
        "unscaled-scores",
        "doubled-values",
        "dot-products-without-the-last-feature",
        "recorded-weights-of-another-head",
    ),
)
@torch.no_grad()
def step_by_step() -> CheckResult:
    trace = trace_example()
    unscaled, e, a, y = trace["QK^T"], trace["E"], trace["A"], trace["Y"]
    x = trace["X"]
    layer = AttentionLayer(2, key_dim=64, value_dim=2)
    with torch.no_grad():
        for part, name in ((layer.query, "W_Q"), (layer.key, "W_K"), (layer.value, "W_V")):
            part.weight.copy_(trace[name].T)
    kept, _ = weigh(*(x @ trace[name] for name in ("W_Q", "W_K", "W_V")))
    q, k = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])  # q · k is 6 and 3
    first, second = attend_in_layer(q, k, k).a[0].clamp(min=1e-30).log().tolist()
    return build_result(
        expect_equal("first row of Q K^T", str(unscaled[0].tolist()), "[112.0, 96.0]"),
        expect_equal("divided by √d_k = 8", str(e[0].tolist()), "[14.0, 12.0]"),
        expect_near("weight of the first word", round(float(a[0, 0]), 2), 0.88, within=1e-9),
        expect_near("weight of the second word", round(float(a[0, 1]), 2), 0.12, within=1e-9),
        expect_near("y_1: difference from 0.88 v_1 + 0.12 v_2", max_difference(y, kept), 0, within=1e-4),
        expect_near("the layer itself: difference", max_difference(layer(x), kept), 0, within=1e-4),
        *compare_ways(trace["Q"], trace["K"], trace["V"], within=1e-4),
        expect_near(
            "√3, the divisor for d_k = 3 as in the drawing: Q K^T over E of a layer",
            (6 - 3) / max(first - second, 1e-30),
            1.732,
            within=1e-3,
        ),
        *_compare_trace_of_a_run(),
    )


def _compare_trace_of_a_run() -> list[Comparison]:
    """Compare the trace of one head of a model on a sentence with the formulas."""
    predictor = build_word_predictor("we are eating bread")
    model: Any = predictor.model
    trace, words = trace_run(predictor, "we are eating bread", layer=2, head=3)
    head = compute_heads(model.reader.stack.blocks[1].self, trace["X"][None])[2]
    differences = {
        name: max_difference(trace[name].double(), getattr(head, letter)[0].double())
        for name, letter in (("Q", "q"), ("K", "k"), ("V", "v"), ("E", "e"), ("A", "a"), ("Y", "y"))
    }
    worst = max(differences, key=lambda name: differences[name])
    return [
        expect_equal("trace of a model: its words", " ".join(words), "␣we ␣are ␣eating ␣bread <end>"),
        expect_near(f"trace of a model: largest difference ({worst})", differences[worst], 0, within=1e-4),
    ]
