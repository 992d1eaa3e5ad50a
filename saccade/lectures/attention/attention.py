"""Rows about attention itself: scores, weights, weighted sum."""

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
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, near, same
from saccade.lectures.drawing import Lines
from saccade.lectures.small import apart, numbers, shape_of


@check(
    14,
    "S3:121",
    "The alignment score of Bahdanau is a small network of the decoder's state and an encoder's state.",
    formula=r"e_{t,i} = v^\top \tanh(W s_{t-1} + U h_i)",
    code=(Additive,),
)
def additive_score() -> Measured:
    score = Additive(5, key_dim=7, hidden=11).double()
    s, h = numbers(3, 5), numbers(13, 7)
    w, u, v = score.query.weight, score.key.weight, score.energy.weight[0]
    by_hand = torch.stack([torch.stack([v @ torch.tanh(w @ q + u @ k) for k in h]) for q in s])
    return measured(near("largest difference from the formula", apart(score(s, h), by_hand), 0, within=1e-12))


@check(
    15,
    "S3:129",
    "Attention weights lie between 0 and 1 and sum to 1; padding gets exactly 0.",
    formula=r"0 < a_{t,i} < 1, \quad \sum_i a_{t,i} = 1",
    code=(masked_softmax,),
)
def weights_are_a_distribution() -> Measured:
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 5:] = False  # two positions of padding
    _, a = attend(numbers(4, 8), numbers(7, 8), numbers(7, 3), mask=mask)
    return measured(
        near("largest distance of a row's sum from 1", apart(a.sum(-1), torch.ones(4).double()), 0, within=1e-12),
        at_least("smallest weight of a real position", float(a[:, :5].min()), 1e-12),
        at_most("largest weight", float(a.max()), 1 - 1e-12),
        same("largest weight of padding", float(a[:, 5:].max()), 0.0),
    )


@check(
    16,
    "S3:138",
    "The context vector is the sum of the encoder's states, weighted by attention.",
    formula=r"c_t = \sum_i a_{t,i} h_i",
    code=(attend,),
)
def context_vector() -> Measured:
    s, h = numbers(3, 5), numbers(7, 5)
    c, a = attend(s, h, h)
    by_hand = torch.stack([sum((a[t, i] * h[i] for i in range(7)), torch.zeros(5).double()) for t in range(3)])
    return measured(near("largest difference from the sum", apart(c, by_hand), 0, within=1e-12))


@check(
    18,
    "S3:144",
    "Everything is differentiable: attention weights are learned without being told.",
    formula=r"\frac{\partial L}{\partial e} = \frac{\partial L}{\partial c} "
    r"\frac{\partial c}{\partial a} \frac{\partial a}{\partial e}",
    code=(attend, Additive),
)
def differentiable() -> Measured:
    score = Additive(2, key_dim=3, hidden=5).double()
    s, h = numbers(2, 2).requires_grad_(), numbers(4, 3).requires_grad_()

    def context(query: Tensor, states: Tensor) -> Tensor:
        return attend(query, states, states, score=score)[0]

    agrees = torch.autograd.gradcheck(context, (s, h), raise_exception=False)
    context(s, h).square().sum().backward()
    moved = sum(1 for p in score.parameters() if p.grad is not None and bool(p.grad.abs().max() > 0))
    return measured(
        same("backpropagation agrees with finite differences", agrees, True),
        same("matrices of the score that get a gradient from the output alone", moved, 3),
    )


@check(
    23,
    "S3:104-118",
    "The context uses all states of the encoder, not only the last one.",
    formula=r"\frac{\partial c_t}{\partial h_i} \neq 0 \quad \text{for~all~} i",
    code=(attend,),
)
def uses_all_states() -> Measured:
    h = numbers(9, 5).requires_grad_()
    attend(numbers(1, 5), h, h)[0].sum().backward()
    assert h.grad is not None
    reached = int((h.grad.norm(dim=-1) > 1e-9).sum())
    return measured(same("encoder states that the context depends on, of 9", reached, 9))


@check(
    24,
    "S3:232-284",
    "On a picture's grid the softmax runs over all H x W places together, and c_t is the sum over the grid.",
    formula=r"\sum_{i,j} a_{t,i,j} = 1, \quad c_t = \sum_{i,j} a_{t,i,j} h_{i,j}",
    code=(attend, Additive),
)
def attention_over_a_grid() -> Measured:
    grid, s = numbers(3, 5, 7), numbers(1, 4)
    score = Additive(4, key_dim=7, hidden=11).double()
    c, a = attend(s, grid.flatten(0, 1), grid.flatten(0, 1), score=score)
    a = a.detach().reshape(3, 5)
    return measured(
        near("sum of the weights over the grid", float(a.sum()), 1, within=1e-12),
        at_most("largest sum of one line of the grid", float(a.sum(1).max()), 0.999),
        near("c against the double sum", apart(c[0], (a[..., None] * grid).sum((0, 1))), 0, within=1e-12),
    )


@check(
    34,
    "S3:419",
    "Attention pooling with a Gaussian score is the Nadaraya-Watson estimate: the query asks, keys answer with values.",
    formula=r"f(x) = \sum_i \frac{\exp(-(x - x_i)^2 / 2)}{\sum_j \exp(-(x - x_j)^2 / 2)} y_i",
    code=(attend,),
)
def nadaraya_watson() -> Measured:
    x = torch.rand(50, 1, dtype=torch.float64).sort(0).values * 5
    wanted = torch.linspace(0, 5, 50, dtype=torch.float64)[:, None]

    def truth(at: Tensor) -> Tensor:
        return 2 * at.sin() + at**0.8

    y = truth(x) + 0.5 * numbers(50, 1)
    pooled, _ = attend(wanted, x, y, score=lambda q, k: -((q - k.mT) ** 2) / 2)
    kernel = (-((wanted - x.T) ** 2) / 2).exp()
    by_hand = (kernel @ y) / kernel.sum(1, keepdim=True)
    error, flat = ((pooled - truth(wanted)) ** 2).mean(), ((y.mean() - truth(wanted)) ** 2).mean()
    at = wanted[:, 0].tolist()
    curves = {
        "truth": (at, truth(wanted)[:, 0].tolist()),
        "attention pooling": (at, pooled[:, 0].tolist()),
        "mean of all values": (at, [float(y.mean())] * 50),
    }
    caption = "Attention pooling over 50 noisy points: a query gets a mean of values, in which near keys count most."
    return measured(
        near("largest difference from the kernel estimate", apart(pooled, by_hand), 0, within=1e-12),
        at_most("squared error beside that of the plain mean", float(error / flat), 0.7),
        drawing=Lines("x", "y", curves, caption),
    )


@check(
    35,
    "S3:421-436",
    "The layer is the same for any similarity f_att: e has N_X numbers, a = softmax(e), y has D_X numbers.",
    formula=r"e_i = f_{att}(q, X_i), \quad a = \softmax(e), \quad y = \sum_i a_i X_i",
    code=(attend, Additive, Bilinear, dot, scaled_dot),
)
def any_similarity() -> Measured:
    q, x = numbers(1, 6), numbers(11, 6)
    scores: dict[str, Score] = {
        "dot product": dot,
        "scaled dot product": scaled_dot,
        "bilinear": Bilinear(6, key_dim=6).double(),
        "network": Additive(6, key_dim=6, hidden=5).double(),
    }
    compared = []
    for name, score in scores.items():
        y, a = attend(q, x, x, score=score)
        by_hand = torch.softmax(score(q, x), -1) @ x
        compared.append(same(f"{name}: shapes of e, a and y", f"{shape_of(a)}, {shape_of(y)}", "1 x 11, 1 x 6"))
        compared.append(near(f"{name}: y against sum a X", apart(y, by_hand), 0, within=1e-12))
    return measured(*compared)


@check(
    40,
    "S3:520-535",
    "Many queries at once: E is N_Q x N_X, each row of A sums to 1, Y = A X.",
    formula=r"E = \frac{Q X^\top}{\sqrt{D_Q}}, \quad A = \softmax(E, \mathrm{dim}=1), \quad Y = A X",
    code=(attend, scaled_dot),
)
def many_queries() -> Measured:
    q, x = numbers(5, 8), numbers(7, 8)
    y, a = attend(q, x, x)
    by_hand = torch.softmax(q @ x.T / 8**0.5, 1)
    one_by_one = torch.cat([attend(q[i : i + 1], x, x)[0] for i in range(5)])
    return measured(
        same("shape of E and A", shape_of(a), "5 x 7"),
        near("A against softmax(Q X^T / √D_Q)", apart(a, by_hand), 0, within=1e-12),
        near("largest distance of a row's sum from 1", apart(a.sum(1), torch.ones(5).double()), 0, within=1e-12),
        near("all queries at once against one by one", apart(y, one_by_one), 0, within=1e-12),
    )


@check(
    41,
    "S3:543-576",
    "Keys and values are two projections of X: K is N_X x D_Q, V is N_X x D_V, Y is N_Q x D_V.",
    formula=r"K = X W_K, \quad V = X W_V, \quad E = \frac{Q K^\top}{\sqrt{D_Q}}, \quad Y = A V",
    code=(attend,),
)
def keys_and_values() -> Measured:
    q, x, w_k, w_v = numbers(3, 11), numbers(5, 7), numbers(7, 11), numbers(7, 13)
    k, v = x @ w_k, x @ w_v
    y, a = attend(q, k, v)
    by_hand = torch.softmax(q @ k.T / 11**0.5, 1) @ v
    return measured(
        same("K, N_X x D_Q", shape_of(k), "5 x 11"),
        same("V, N_X x D_V", shape_of(v), "5 x 13"),
        same("E and A, N_Q x N_X", shape_of(a), "3 x 5"),
        same("Y, N_Q x D_V", shape_of(y), "3 x 13"),
        near("Y against softmax(Q K^T / √D_Q) V", apart(y, by_hand), 0, within=1e-12),
    )


@check(
    43,
    "S3:681",
    "dim=1 of a matrix makes each row sum to 1; with a batch in front only dim=-1 does.",
    formula=r"\sum_j \softmax(E)_{i,j} = 1",
    code=(masked_softmax,),
)
def which_axis() -> Measured:
    e, batch = numbers(5, 7), numbers(2, 5, 7)
    ones = torch.ones(2, 5).double()
    return measured(
        near("matrix: weights against dim=1", apart(masked_softmax(e, None), e.softmax(1)), 0, within=1e-12),
        near("batch: sums of rows from 1", apart(masked_softmax(batch, None).sum(-1), ones), 0, within=1e-12),
        at_least("batch with dim=1: sums of rows from 1", apart(batch.softmax(1).sum(-1), ones), 0.1),
    )


@check(
    44,
    "S1:80-111,135",
    "The worked example: weights 0.6, 0.1, 0.2, 0.1 and the context 0.6 v1 + 0.1 v2 + 0.2 v3 + 0.1 v4.",
    formula=r"\softmax(q \cdot k_1, \dots, q \cdot k_4) = (0.6, 0.1, 0.2, 0.1)",
    code=(attend, dot),
)
def worked_example() -> Measured:
    wanted = torch.tensor([0.6, 0.1, 0.2, 0.1])
    q, k = torch.tensor([[1.0, 0.0]]), torch.stack([wanted.log() + 3, torch.arange(4.0)], 1)
    c, a = attend(q, k, torch.tensor([[2.0], [3.0], [5.0], [7.0]]), score=dot)
    return measured(
        near("largest difference of the weights, in float32", apart(a[0], wanted), 0, within=1e-7),
        near("c for the values 2, 3, 5, 7", float(c), 3.2, within=1e-6),
    )


@check(
    45,
    "S2:81",
    "Scaled dot-product attention in one line, equal to PyTorch's own.",
    formula=r"\mathrm{Attention}(Q, K, V) = \softmax(\frac{Q K^\top}{\sqrt{d_k}}) V",
    code=(attend, scaled_dot),
)
def against_pytorch() -> Measured:
    q, k, v = numbers(2, 3, 5, 7), numbers(2, 3, 11, 7), numbers(2, 3, 11, 13)
    theirs = F.scaled_dot_product_attention(q, k, v)
    return measured(near("largest difference", apart(attend(q, k, v)[0], theirs), 0, within=1e-10))


@check(
    46,
    "S2:144-146",
    "Q, K and V have one row for each word; W_Q and W_K are embedding width x d_k.",
    formula=r"Q, K \in \R^{L \times d_k}, \quad V \in \R^{L \times d_v}, \quad W_Q, W_K \in \R^{D \times d_k}",
    code=(AttentionLayer,),
)
def sizes() -> Measured:
    layer, x = AttentionLayer(16, key_dim=5, value_dim=7).double(), numbers(11, 16)
    return measured(
        same("Q and K, L x d_k", f"{shape_of(layer.query(x))}, {shape_of(layer.key(x))}", "11 x 5, 11 x 5"),
        same("V, L x d_v", shape_of(layer.value(x)), "11 x 7"),
        same(
            "W_Q and W_K, D x d_k",
            f"{shape_of(layer.query.weight.T)}, {shape_of(layer.key.weight.T)}",
            "16 x 5, 16 x 5",
        ),
        same("output, L x d_v", shape_of(layer(x)), "11 x 7"),
    )
