"""Checks on attention scores: equal widths, scaling by the square root of the width, hyperparameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saccade.config import schema
from saccade.layers.attention.scores import AttentionLayer, attend, dot, scaled_dot
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
from saccade.lectures.small import fit_exponent, max_difference, sample_normal
from saccade.lectures.trace import trace_example

WIDTHS = [16, 64, 256, 1024, 4096]
SAMPLES = 2000


@check(
    36,
    "S3:440-455",
    "The dot product needs queries and inputs of equal width, D_X = D_Q; the error message names both.",
    formula=r"e_i = q \cdot X_i, \quad D_X = D_Q",
    code=(dot,),
)
def one_width() -> CheckResult:
    try:
        dot(sample_normal(1, 5), sample_normal(3, 7))
        named = "nothing"
    except ValueError as error:
        named = ", ".join(part for part in ("D_Q = 5", "D_X = 7") if part in str(error))
    return build_result(expect_equal("what the error names", named, "D_Q = 5, D_X = 7"))


@check(
    37,
    "S3:463-484,507",
    "The scaled dot product divides by the square root of the width.",
    formula=r"e_i = \frac{q \cdot X_i}{\sqrt{D_Q}}",
    code=(scaled_dot,),
)
def scaled_dot_product() -> CheckResult:
    q, x = sample_normal(3, 9), sample_normal(5, 9)
    by_hand = torch.tensor(
        [[sum(a * b for a, b in zip(i, j, strict=True)) / 3 for j in x.tolist()] for i in q.tolist()]
    )
    return build_result(
        expect_near(
            "largest difference from q · X / 3 at D_Q = 9",
            max_difference(scaled_dot(q, x), by_hand.double()),
            0,
            within=1e-6,
        )
    )


@check(
    38,
    "S3:494-503",
    "Large scores saturate the softmax, and its gradient vanishes; dividing by the root of the width prevents this.",
    formula=r"\frac{\partial a}{\partial e} = \mathrm{diag}(a) - a a^\top, \quad |a| = a \sqrt{D}",
    code=(attend, scaled_dot, dot),
)
def saturation() -> CheckResult:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for name, score in (("without scaling", dot), ("scaled", scaled_dot)):
        found = [_measure_gradients(score, width) for width in WIDTHS]
        curves[f"da/de, {name}"] = ([*map(float, WIDTHS)], [pair[0] for pair in found])
        curves[f"da/dq, {name}"] = ([*map(float, WIDTHS)], [pair[1] for pair in found])
    unscaled, scaled = curves["da/de, without scaling"][1], curves["da/de, scaled"][1]
    by_query = curves["da/dq, without scaling"][1]
    ones = [float(scaled_dot(torch.ones(1, d).double(), torch.ones(1, d).double())) for d in WIDTHS]
    caption = "Median norm of the softmax's Jacobian (10 keys) against the width D: it vanishes only without scaling."
    return build_result(
        expect_at_most("without scaling: |da/de| at D = 4096 over that at D = 16", unscaled[-1] / unscaled[0], 0.01),
        expect_near("scaled: |da/de| at D = 4096 over that at D = 16", scaled[-1] / scaled[0], 1, within=0.2),
        expect_at_least("without scaling: |da/dq| over |da/de| at D = 16", by_query[0] / unscaled[0], 3),
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


def _measure_gradients(score: object, width: int) -> tuple[float, float]:
    """Return the median norms of da/de and da/dq for 10 random keys, over 200 samples."""
    q, x = torch.randn(200, 1, width), torch.randn(200, 10, width)
    a = attend(q, x, x, score=score)[1][:, 0].double()  # type: ignore[arg-type]
    jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
    divisor = math.sqrt(width) if score is scaled_dot else 1.0
    tiny = 1e-30  # a logarithmic axis cannot show 0
    by_query = jacobian @ x.double() / divisor
    return tuple(max(tiny, float(m.flatten(1).norm(dim=1).median())) for m in (jacobian, by_query))  # type: ignore[return-value]


@check(
    39,
    "S3:525, S4:50-53",
    "For independent features of mean 0 and variance 1, q · k has mean 0 and variance d; divided by √d, variance 1.",
    formula=r"\E(q \cdot k) = 0, \quad \Var(q \cdot k) = d, \quad \Var(\frac{q \cdot k}{\sqrt{d}}) = 1",
    code=(dot, scaled_dot),
)
def variance() -> CheckResult:
    compared, raw, kept = [], [], []
    for width in WIDTHS:
        q, k = torch.randn(SAMPLES, 1, width), torch.randn(SAMPLES, 1, width)
        plain, scaled_scores = dot(q, k).flatten().double(), scaled_dot(q, k).flatten().double()
        raw.append(float(plain.var()))
        kept.append(float(scaled_scores.var()))
        compared += _compare_moments(f"d = {width}: ", plain, width)
        compared.append(
            expect_near(
                f"d = {width}: variance after scaling", kept[-1], 1, within=3 * _compute_variance_error(scaled_scores)
            )
        )
    wide = [*map(float, WIDTHS)]
    caption = f"Variance of q · k over {SAMPLES:,} random pairs: it equals the width d, and 1 after division by √d."
    curves = {"q · k": (wide, raw), "q · k / √d": (wide, kept)}
    return build_result(*compared, drawing=Lines("d", "variance", curves, caption, log_x=True, log_y=True))


def _compare_moments(name: str, scores: Tensor, width: int) -> list[Comparison]:
    """Expect mean 0 and variance d, each within three standard errors."""
    error = 3 * math.sqrt(width / len(scores))
    return [
        expect_near(f"{name}mean", float(scores.mean()), 0, within=error),
        expect_near(f"{name}variance", float(scores.var()), width, within=3 * _compute_variance_error(scores)),
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
    code=(AttentionLayer, schema.TransformerStack),
)
def what_is_trained() -> CheckResult:
    layer = AttentionLayer(16, key_dim=5, value_dim=7)
    names = ", ".join(name for name, _ in layer.named_parameters())
    tables: dict[str, type[schema.Table]] = {
        "data": schema.Data,
        "reader": schema.TokenReader,
        "reader.stack": schema.TransformerStack,
    }
    keys = [("data", "max_length"), ("reader.stack", "dim"), ("reader.stack", "heads"), ("reader", "positions")]
    there = sum(name in tables[table].model_fields for table, name in keys)
    return build_result(
        expect_equal("parameters of the single-head layer", names, "query.weight, key.weight, value.weight"),
        expect_equal("hyperparameters that are settings of a recipe, of: " + ", ".join(map(".".join, keys)), there, 4),
    )


@check(
    48,
    "S2:112-132",
    "A worked example: scores 112 and 96, divided by 8 = √64, give attention weights 0.88 and 0.12.",
    formula=r"\softmax(\frac{112}{8}, \frac{96}{8}) = (0.88, 0.12)",
    code=(AttentionLayer, scaled_dot, attend),
)
def step_by_step() -> CheckResult:
    trace = trace_example()
    unscaled, e, a, y = trace["QK^T"], trace["E"], trace["A"], trace["Y"]
    return build_result(
        expect_equal("first row of Q K^T", str(unscaled[0].tolist()), "[112.0, 96.0]"),
        expect_equal("divided by √d_k = 8", str(e[0].tolist()), "[14.0, 12.0]"),
        expect_near("weight of the first word", round(float(a[0, 0]), 2), 0.88, within=1e-9),
        expect_near("weight of the second word", round(float(a[0, 1]), 2), 0.12, within=1e-9),
        expect_near(
            "y_1: difference from 0.88 v_1 + 0.12 v_2", max_difference(y[0], a[0] @ trace["V"]), 0, within=1e-6
        ),
        expect_near("√3, the divisor for d_k = 3 as in the drawing", math.sqrt(3), 1.732, within=1e-3),
    )
