"""Checks on attention itself: scores, weights, weighted sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.layers.attention.scores import (
    Additive,
    AttentionLayer,
    Bilinear,
    Score,
    attend,
    dot,
    masked_softmax,
    scaled_dot,
)
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.small import format_shape, max_difference, sample_normal


@check(
    23,
    "S3:104-118",
    "The context uses all states of the encoder, not only the last one.",
    formula=r"\frac{\partial c_t}{\partial h_i} \neq 0 \quad \text{for~all~} i",
    code=(attend,),
)
def uses_all_states() -> CheckResult:
    h = sample_normal(9, 5).requires_grad_()
    attend(sample_normal(1, 5), h, h)[0].sum().backward()
    assert h.grad is not None
    reached = int((h.grad.norm(dim=-1) > 1e-9).sum())
    return build_result(expect_equal("encoder states that the context depends on, of 9", reached, 9))


@check(
    34,
    "S3:419",
    "Attention pooling with a Gaussian score is the Nadaraya-Watson kernel estimate of the value at the query.",
    formula=r"f(x) = \sum_i \frac{\exp(-(x - x_i)^2 / 2)}{\sum_j \exp(-(x - x_j)^2 / 2)} y_i",
    code=(attend,),
)
def nadaraya_watson() -> CheckResult:
    x = torch.rand(50, 1, dtype=torch.float64).sort(0).values * 5
    queries = torch.linspace(0, 5, 50, dtype=torch.float64)[:, None]

    def truth(points: Tensor) -> Tensor:
        return 2 * points.sin() + points**0.8

    y = truth(x) + 0.5 * sample_normal(50, 1)
    pooled, _ = attend(queries, x, y, score=lambda q, k: -((q - k.mT) ** 2) / 2)
    kernel = (-((queries - x.T) ** 2) / 2).exp()
    by_hand = (kernel @ y) / kernel.sum(1, keepdim=True)
    error, flat = ((pooled - truth(queries)) ** 2).mean(), ((y.mean() - truth(queries)) ** 2).mean()
    points = queries[:, 0].tolist()
    curves = {
        "truth": (points, truth(queries)[:, 0].tolist()),
        "attention pooling": (points, pooled[:, 0].tolist()),
        "mean of all values": (points, [float(y.mean())] * 50),
    }
    caption = "Attention pooling over 50 noisy points: the output is a mean of values, weighted most for near keys."
    return build_result(
        expect_near("largest difference from the kernel estimate", max_difference(pooled, by_hand), 0, within=1e-12),
        expect_at_most("squared error divided by that of the plain mean", float(error / flat), 0.7),
        drawing=Lines("x", "y", curves, caption),
    )


@check(
    35,
    "S3:421-436",
    "The layer is the same for any similarity f_att: e has N_X elements, a = softmax(e), y has D_X elements.",
    formula=r"e_i = f_{att}(q, X_i), \quad a = \softmax(e), \quad y = \sum_i a_i X_i",
    code=(attend, Additive, Bilinear, dot, scaled_dot),
)
def any_similarity() -> CheckResult:
    q, x = sample_normal(1, 6), sample_normal(11, 6)
    scores: dict[str, Score] = {
        "dot product": dot,
        "scaled dot product": scaled_dot,
        "bilinear": Bilinear(6, key_dim=6).double(),
        "network": Additive(6, key_dim=6, hidden_dim=5).double(),
    }
    compared = []
    for name, score in scores.items():
        y, a = attend(q, x, x, score=score)
        by_hand = torch.softmax(score(q, x), -1) @ x
        compared.append(
            expect_equal(f"{name}: shapes of e, a and y", f"{format_shape(a)}, {format_shape(y)}", "1 x 11, 1 x 6")
        )
        compared.append(
            expect_near(f"{name}: y, difference from the sum of a_i X_i", max_difference(y, by_hand), 0, within=1e-12)
        )
    return build_result(*compared)


@check(
    40,
    "S3:520-535",
    "Many queries at once: E is N_Q x N_X, each row of A sums to 1, Y = A X.",
    formula=r"E = \frac{Q X^\top}{\sqrt{D_Q}}, \quad A = \softmax(E, \mathrm{dim}=1), \quad Y = A X",
    code=(attend, scaled_dot),
)
def many_queries() -> CheckResult:
    q, x = sample_normal(5, 8), sample_normal(7, 8)
    y, a = attend(q, x, x)
    by_hand = torch.softmax(q @ x.T / 8**0.5, 1)
    one_by_one = torch.cat([attend(q[i : i + 1], x, x)[0] for i in range(5)])
    return build_result(
        expect_equal("shape of E and A", format_shape(a), "5 x 7"),
        expect_near("A: difference from softmax(Q X^T / √D_Q)", max_difference(a, by_hand), 0, within=1e-12),
        expect_near(
            "largest distance of a row's sum from 1", max_difference(a.sum(1), torch.ones(5).double()), 0, within=1e-12
        ),
        expect_near("all queries at once: difference from one by one", max_difference(y, one_by_one), 0, within=1e-12),
    )


@check(
    41,
    "S3:543-576",
    "Keys and values are two projections of X: K is N_X x D_Q, V is N_X x D_V, Y is N_Q x D_V.",
    formula=r"K = X W_K, \quad V = X W_V, \quad E = \frac{Q K^\top}{\sqrt{D_Q}}, \quad Y = A V",
    code=(attend,),
)
def keys_and_values() -> CheckResult:
    q, x, w_k, w_v = sample_normal(3, 11), sample_normal(5, 7), sample_normal(7, 11), sample_normal(7, 13)
    k, v = x @ w_k, x @ w_v
    y, a = attend(q, k, v)
    by_hand = torch.softmax(q @ k.T / 11**0.5, 1) @ v
    return build_result(
        expect_equal("K, N_X x D_Q", format_shape(k), "5 x 11"),
        expect_equal("V, N_X x D_V", format_shape(v), "5 x 13"),
        expect_equal("E and A, N_Q x N_X", format_shape(a), "3 x 5"),
        expect_equal("Y, N_Q x D_V", format_shape(y), "3 x 13"),
        expect_near("Y: difference from softmax(Q K^T / √D_Q) V", max_difference(y, by_hand), 0, within=1e-12),
    )


@check(
    43,
    "S3:681",
    "dim=1 of a matrix makes each row sum to 1; with a batch in front only dim=-1 does.",
    formula=r"\sum_j \softmax(E)_{i,j} = 1",
    code=(masked_softmax,),
)
def which_axis() -> CheckResult:
    e, batch = sample_normal(5, 7), sample_normal(2, 5, 7)
    ones = torch.ones(2, 5).double()
    return build_result(
        expect_near(
            "matrix: difference of the weights from softmax with dim=1",
            max_difference(masked_softmax(e, None), e.softmax(1)),
            0,
            within=1e-12,
        ),
        expect_near(
            "batch with dim=-1: distance of row sums from 1",
            max_difference(masked_softmax(batch, None).sum(-1), ones),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "batch with dim=1: distance of row sums from 1", max_difference(batch.softmax(1).sum(-1), ones), 0.1
        ),
    )


@check(
    44,
    "S1:80-111,135",
    "The worked example: weights 0.6, 0.1, 0.2, 0.1 and the context 0.6 v1 + 0.1 v2 + 0.2 v3 + 0.1 v4.",
    formula=r"\softmax(q \cdot k_1, \dots, q \cdot k_4) = (0.6, 0.1, 0.2, 0.1)",
    code=(attend, dot),
)
def worked_example() -> CheckResult:
    weights = torch.tensor([0.6, 0.1, 0.2, 0.1])
    q, k = torch.tensor([[1.0, 0.0]]), torch.stack([weights.log() + 3, torch.arange(4.0)], 1)
    c, a = attend(q, k, torch.tensor([[2.0], [3.0], [5.0], [7.0]]), score=dot)
    return build_result(
        expect_near("largest difference of the weights, in float32", max_difference(a[0], weights), 0, within=1e-7),
        expect_near("context c for the values 2, 3, 5, 7", float(c), 3.2, within=1e-6),
    )


@check(
    45,
    "S2:81",
    "Scaled dot-product attention is one line, and equals that of PyTorch.",
    formula=r"\mathrm{Attention}(Q, K, V) = \softmax(\frac{Q K^\top}{\sqrt{d_k}}) V",
    code=(attend, scaled_dot),
)
def against_pytorch() -> CheckResult:
    q, k, v = sample_normal(2, 3, 5, 7), sample_normal(2, 3, 11, 7), sample_normal(2, 3, 11, 13)
    theirs = F.scaled_dot_product_attention(q, k, v)
    return build_result(expect_near("largest difference", max_difference(attend(q, k, v)[0], theirs), 0, within=1e-10))


@check(
    46,
    "S2:144-146",
    "Q, K and V have one row for each word; W_Q and W_K are embedding width x d_k.",
    formula=r"Q, K \in \R^{L \times d_k}, \quad V \in \R^{L \times d_v}, \quad W_Q, W_K \in \R^{D \times d_k}",
    code=(AttentionLayer,),
)
def sizes() -> CheckResult:
    layer, x = AttentionLayer(16, key_dim=5, value_dim=7).double(), sample_normal(11, 16)
    return build_result(
        expect_equal(
            "Q and K, L x d_k", f"{format_shape(layer.query(x))}, {format_shape(layer.key(x))}", "11 x 5, 11 x 5"
        ),
        expect_equal("V, L x d_v", format_shape(layer.value(x)), "11 x 7"),
        expect_equal(
            "W_Q and W_K, D x d_k",
            f"{format_shape(layer.query.weight.T)}, {format_shape(layer.key.weight.T)}",
            "16 x 5, 16 x 5",
        ),
        expect_equal("output, L x d_v", format_shape(layer(x)), "11 x 7"),
    )
