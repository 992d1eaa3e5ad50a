"""Rows about the score: which width it needs, why it is divided by the root of the width, what else can be set."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saccade.config import schema
from saccade.layers.attention.scores import AttentionLayer, attend, dot, scaled_dot
from saccade.lectures.claims import Compared, Measured, at_least, at_most, check, measured, near, same
from saccade.lectures.drawing import Lines
from saccade.lectures.small import apart, numbers, slope
from saccade.lectures.trace import worked

WIDTHS = [16, 64, 256, 1024, 4096]
DRAWS = 2000


@check(
    36,
    "S3:440-455",
    "The dot product needs queries and inputs of one width, D_X = D_Q; the message names both.",
    formula=r"e_i = q \cdot X_i, \quad D_X = D_Q",
    code=(dot,),
)
def one_width() -> Measured:
    try:
        dot(numbers(1, 5), numbers(3, 7))
        said = "nothing"
    except ValueError as error:
        said = ", ".join(part for part in ("D_Q = 5", "D_X = 7") if part in str(error))
    return measured(same("what the error names", said, "D_Q = 5, D_X = 7"))


@check(
    37,
    "S3:463-484,507",
    "The scaled dot product divides by the square root of the width.",
    formula=r"e_i = \frac{q \cdot X_i}{\sqrt{D_Q}}",
    code=(scaled_dot,),
)
def scaled() -> Measured:
    q, x = numbers(3, 9), numbers(5, 9)
    by_hand = torch.tensor(
        [[sum(a * b for a, b in zip(i, j, strict=True)) / 3 for j in x.tolist()] for i in q.tolist()]
    )
    return measured(
        near("largest difference from q.X / 3 at D_Q = 9", apart(scaled_dot(q, x), by_hand.double()), 0, within=1e-6)
    )


@check(
    38,
    "S3:494-503",
    "Large scores saturate the softmax, so that its gradient vanishes; dividing by the root of the width prevents it.",
    formula=r"\frac{\partial a}{\partial e} = \mathrm{diag}(a) - a a^\top, \quad |a| = a \sqrt{D}",
    code=(attend, scaled_dot, dot),
)
def saturation() -> Measured:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for name, score in (("without scaling", dot), ("scaled", scaled_dot)):
        found = [_gradients(score, width) for width in WIDTHS]
        curves[f"da/de, {name}"] = ([*map(float, WIDTHS)], [pair[0] for pair in found])
        curves[f"da/dq, {name}"] = ([*map(float, WIDTHS)], [pair[1] for pair in found])
    raw, kept = curves["da/de, without scaling"][1], curves["da/de, scaled"][1]
    asked = curves["da/dq, without scaling"][1]
    ones = [float(scaled_dot(torch.ones(1, d).double(), torch.ones(1, d).double())) for d in WIDTHS]
    caption = "Median norm of the softmax's Jacobian (10 keys) against the width D: it vanishes only without scaling."
    return measured(
        at_most("without scaling: |da/de| at D = 4096 over that at D = 16", raw[-1] / raw[0], 0.01),
        near("scaled: the same", kept[-1] / kept[0], 1, within=0.2),
        at_least("without scaling: |da/dq| over |da/de| at D = 16", asked[0] / raw[0], 3),
        near("constant vectors: scaled scores grow with D to the power of", slope(WIDTHS, ones), 0.5, within=1e-6),
        drawing=Lines("D", "median norm", curves, caption, log_x=True, log_y=True),
        note="The slide's constant vectors are an illustration only: divided by √D their scores still grow as √D. "
        "The argument of the paper is the variance (row 39).",
    )


def _gradients(score: object, width: int) -> tuple[float, float]:
    """Median norms of da/de and of da/dq for 10 random keys, over 200 draws."""
    q, x = torch.randn(200, 1, width), torch.randn(200, 10, width)
    a = attend(q, x, x, score=score)[1][:, 0].double()  # type: ignore[arg-type]
    jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
    divisor = math.sqrt(width) if score is scaled_dot else 1.0
    tiny = 1e-30  # below that a logarithmic axis has no place
    by_query = jacobian @ x.double() / divisor
    return tuple(max(tiny, float(m.flatten(1).norm(dim=1).median())) for m in (jacobian, by_query))  # type: ignore[return-value]


@check(
    39,
    "S3:525, S4:50-53",
    "For independent numbers of mean 0 and variance 1, q.k has mean 0 and variance d; divided by √d, variance 1.",
    formula=r"\E(q \cdot k) = 0, \quad \Var(q \cdot k) = d, \quad \Var(\frac{q \cdot k}{\sqrt{d}}) = 1",
    code=(dot, scaled_dot),
)
def variance() -> Measured:
    compared, raw, kept = [], [], []
    for width in WIDTHS:
        q, k = torch.randn(DRAWS, 1, width), torch.randn(DRAWS, 1, width)
        plain, scaled_scores = dot(q, k).flatten().double(), scaled_dot(q, k).flatten().double()
        raw.append(float(plain.var()))
        kept.append(float(scaled_scores.var()))
        compared += _three_sigma(f"d = {width}: ", plain, width)
        compared.append(near(f"d = {width}: variance after scaling", kept[-1], 1, within=3 * _error(scaled_scores)))
    wide = [*map(float, WIDTHS)]
    caption = (
        f"Variance of q.k over {DRAWS:,} random pairs: it is the width, and 1 once divided by the root of the width."
    )
    curves = {"q.k": (wide, raw), "q.k / √d": (wide, kept)}
    return measured(*compared, drawing=Lines("d", "variance", curves, caption, log_x=True, log_y=True))


def _three_sigma(name: str, scores: Tensor, width: int) -> list[Compared]:
    """Mean 0 and variance d, each within three times the error that so many draws leave."""
    error = 3 * math.sqrt(width / len(scores))
    return [
        near(f"{name}mean", float(scores.mean()), 0, within=error),
        near(f"{name}variance", float(scores.var()), width, within=3 * _error(scores)),
    ]


def _error(scores: Tensor) -> float:
    """The standard error of a variance: √((m4 - m2²) / n)."""
    centred = scores - scores.mean()
    m2, m4 = (centred**2).mean(), (centred**4).mean()
    return float(((m4 - m2**2) / len(scores)).sqrt())


@check(
    47,
    "S2:92-100",
    "What is trained is W_V, W_Q and W_K; length, widths, heads and positions are chosen.",
    formula=r"W^V, W^Q, W^K; \quad L, d_k, d_v, h",
    code=(AttentionLayer, schema.TransformerStack),
)
def what_is_trained() -> Measured:
    layer = AttentionLayer(16, key_dim=5, value_dim=7)
    names = ", ".join(name for name, _ in layer.named_parameters())
    tables: dict[str, type[schema.Table]] = {
        "data": schema.Data,
        "reader": schema.TokenReader,
        "reader.stack": schema.TransformerStack,
    }
    keys = [("data", "max_length"), ("reader.stack", "dim"), ("reader.stack", "heads"), ("reader", "positions")]
    there = sum(name in tables[table].model_fields for table, name in keys)
    return measured(
        same("parameters of the single-head layer", names, "query.weight, key.weight, value.weight"),
        same("settings in a recipe, of: " + ", ".join(map(".".join, keys)), there, 4),
    )


@check(
    48,
    "S2:112-132",
    "Step by step: scores 112 and 96, divided by 8 = √64, give weights 0.88 and 0.12.",
    formula=r"\softmax(\frac{112}{8}, \frac{96}{8}) = (0.88, 0.12)",
    code=(AttentionLayer, scaled_dot, attend),
)
def step_by_step() -> Measured:
    seen = worked()
    unscaled, e, a, y = seen["QK^T"], seen["E"], seen["A"], seen["Y"]
    return measured(
        same("first row of Q K^T", str(unscaled[0].tolist()), "[112.0, 96.0]"),
        same("divided by √d_k = 8", str(e[0].tolist()), "[14.0, 12.0]"),
        near("weight of the first word", round(float(a[0, 0]), 2), 0.88, within=1e-9),
        near("weight of the second word", round(float(a[0, 1]), 2), 0.12, within=1e-9),
        near("y_1 against 0.88 v_1 + 0.12 v_2", apart(y[0], a[0] @ seen["V"]), 0, within=1e-6),
        near("√3, were d_k = 3 as in the drawing", math.sqrt(3), 1.732, within=1e-3),
    )
