"""Checks on the attention layer of the notes: any score, many queries, keys and values, and the axis of the softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.layers.attention import backends, masks
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
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
from saccade.lectures.drawing import Lines
from saccade.lectures.references.basics import compute_softmax, weigh
from saccade.lectures.references.comparing import (
    attend_in_layer,
    build_padded_batch,
    build_random_model,
    compare_model,
    measure_layer,
)
from saccade.lectures.references.transformer import ScoreFn, compute_heads
from saccade.lectures.small import format_shape, max_difference, sample_normal


def compare_ways(q: Tensor, k: Tensor, v: Tensor, *, scaled: bool = True, within: float = 1e-12) -> list[Comparison]:
    """Compare `attend` and multi-head attention, fused and step by step, with Y = softmax(Q K^T) V by hand."""
    y, a = weigh(q, k, v, scale=None if scaled else 1.0)
    found, weights = attend(q, k, v, score=scaled_dot if scaled else dot)
    layer = attend_in_layer(q, k, v, scaled=scaled)
    differences = {
        "attend, Y": max_difference(found, y),
        "attend, A": max_difference(weights, a),
        "multi-head attention, Y by the fused kernel": max_difference(layer.y, y),
        "multi-head attention, recorded A": max_difference(layer.a, a),
        "multi-head attention, one query at a time": max_difference(layer.steps, y),
    }
    return [expect_near(f"{name}: difference from the formula", d, 0, within=within) for name, d in differences.items()]


@check(
    34,
    "S3:419",
    "Attention pooling with a Gaussian score is the Nadaraya-Watson kernel estimate of the value at the query.",
    formula=r"f(x) = \sum_i \frac{\exp(-(x - x_i)^2 / 2)}{\sum_j \exp(-(x - x_j)^2 / 2)} y_i",
    code=(attend, CrossAttention),
    breaks=("uniform-attention", "own-score-ignored", "attention-off-by-one", "doubled-values"),
)
def nadaraya_watson() -> CheckResult:
    x = torch.rand(50, 1, dtype=torch.float64).sort(0).values * 5
    queries = torch.linspace(0, 5, 50, dtype=torch.float64)[:, None]

    def truth(points: Tensor) -> Tensor:
        return 2 * points.sin() + points**0.8

    def score(query: Tensor, key: Tensor) -> Tensor:
        return -((query - key.mT) ** 2) / 2

    y = truth(x) + 0.5 * sample_normal(50, 1)
    pooled, _ = attend(queries, x, y, score=score)
    layer = attend_in_layer(queries, x, y, score=score)
    kernel = (-((queries - x.T) ** 2) / 2).exp()
    by_hand = (kernel @ y) / kernel.sum(1, keepdim=True)
    error, flat = ((layer.y - truth(queries)) ** 2).mean(), ((y.mean() - truth(queries)) ** 2).mean()
    points = queries[:, 0].tolist()
    curves = {
        "truth": (points, truth(queries)[:, 0].tolist()),
        "attention pooling": (points, layer.y[:, 0].tolist()),
        "mean of all values": (points, [float(y.mean())] * 50),
    }
    caption = "Attention pooling over 50 noisy points: the output is a mean of values, weighted most for near keys."
    return build_result(
        expect_near("attend: difference from the kernel estimate", max_difference(pooled, by_hand), 0, within=1e-12),
        expect_near(
            "cross-attention with this score (query x, keys x_i, values y_i): difference from the kernel estimate",
            max(max_difference(layer.y, by_hand), max_difference(layer.steps, by_hand)),
            0,
            within=1e-12,
        ),
        expect_at_most("squared error divided by that of the plain mean", float((error / flat).detach()), 0.85),
        drawing=Lines("x", "y", curves, caption),
    )


@check(
    35,
    "S3:421-436",
    "The layer is the same for any similarity f_att: e has N_X elements, a = softmax(e), y has D_X elements.",
    formula=r"e_i = f_{att}(q, X_i), \quad a = \softmax(e), \quad y = \sum_i a_i X_i",
    code=(attend, Additive, Bilinear, dot, scaled_dot),
    breaks=(
        "uniform-attention",
        "own-score-ignored",
        "additive-score-without-tanh",
        "bilinear-score-without-matrix",
        "doubled-values",
        "unscaled-scores",
    ),
)
def any_similarity() -> CheckResult:
    q, x = sample_normal(1, 6), sample_normal(11, 6)
    bilinear, additive = Bilinear(6, key_dim=6).double(), Additive(6, key_dim=6, hidden_dim=5).double()
    w, u, v = additive.query.weight, additive.key.weight, additive.energy.weight[0]
    scores: dict[str, tuple[Score, Tensor]] = {
        "dot product": (dot, (q * x).sum(-1)),
        "scaled dot product": (scaled_dot, (q * x).sum(-1) / 6**0.5),
        "bilinear": (bilinear, torch.stack([q[0] @ (bilinear.key.weight @ row) for row in x])),
        "network": (additive, torch.stack([v @ torch.tanh(w @ q[0] + u @ row) for row in x])),
    }
    compared = []
    for name, (score, e) in scores.items():
        y, a = attend(q, x, x, score=score)
        powers = e.exp()
        by_hand = (powers[:, None] * x).sum(0, keepdim=True) / powers.sum()
        shapes = f"{format_shape(score(q, x))}, {format_shape(a)}, {format_shape(y)}"
        compared += [
            expect_equal(f"{name}: shapes of e, a and y", shapes, "1 x 11, 1 x 11, 1 x 6"),
            expect_near(f"{name}: y, difference from the formula", max_difference(y, by_hand), 0, within=1e-12),
        ]
    return build_result(*compared, *map(_compare_score_of_a_recipe, ("dot", "general", "additive")))


def _compare_score_of_a_recipe(kind: str) -> Comparison:
    """Build a model with this score, and compare the self-attention of its encoder with the formula."""
    model, x = build_random_model([f"reader.stack.score={kind}"]), sample_normal(2, 5, 12)
    layer = model.reader.stack.blocks[0].self
    score = layer.heads.score
    by_hand: dict[str, ScoreFn] = {
        "dot": lambda head, q, k: q @ k.mT,
        "general": lambda head, q, k: q @ (k @ score.key.weight[head]).mT,
        "additive": lambda head, q, k: (
            torch.tanh((q @ score.query.weight[head])[:, :, None] + (k @ score.key.weight[head])[:, None])
            @ score.energy.weight[head]
        )[..., 0],
    }
    if kind != "dot" and score is None:
        return expect_equal(f"the recipe's score {kind} is used", False, True)
    difference = measure_layer(layer, x, score=by_hand[kind])
    return expect_near(f"the recipe's score {kind}: difference from the formula", difference, 0, within=1e-12)


@check(
    40,
    "S3:520-535",
    "Many queries at once: E is N_Q x N_X, each row of A sums to 1, Y = A X.",
    formula=r"E = \frac{Q X^\top}{\sqrt{D_Q}}, \quad A = \softmax(E, \mathrm{dim}=1), \quad Y = A X",
    code=(attend, scaled_dot, CrossAttention),
    breaks=(
        "uniform-attention",
        "attention-to-the-first-key",
        "softmax-over-queries",
        "unscaled-scores",
        "attention-off-by-one",
        "doubled-values",
    ),
)
def many_queries() -> CheckResult:
    q, x = sample_normal(5, 8), sample_normal(7, 8)
    y, a = attend(q, x, x)
    moved = q.clone()
    moved[2] += 1
    changed = (attend_in_layer(moved, x, x).y - attend_in_layer(q, x, x).y).detach().abs().amax(-1) > 1e-9
    return build_result(
        expect_equal("shapes of E = A and Y", f"{format_shape(a)}, {format_shape(y)}", "5 x 7, 5 x 8"),
        *compare_ways(q, x, x),
        expect_near(
            "largest distance of a row's sum from 1", max_difference(a.sum(1), torch.ones(5).double()), 0, within=1e-12
        ),
        expect_equal("outputs that change with query 3", str((changed.nonzero()[:, 0] + 1).tolist()), "[3]"),
        *compare_model(build_random_model(), build_padded_batch()),
    )


@check(
    41,
    "S3:543-576",
    "Keys and values are two projections of X: K is N_X x D_Q, V is N_X x D_V, Y is N_Q x D_V.",
    formula=r"K = X W_K, \quad V = X W_V, \quad E = \frac{Q K^\top}{\sqrt{D_Q}}, \quad Y = A V",
    code=(attend, AttentionLayer, CrossAttention),
    breaks=(
        "uniform-attention",
        "key-and-value-widths-swapped",
        "keys-and-values-swapped",
        "values-are-keys",
        "unscaled-scores",
    ),
)
def keys_and_values() -> CheckResult:
    layer, x = AttentionLayer(7, key_dim=11, value_dim=13).double(), sample_normal(5, 7)
    seen = {"key": torch.zeros(0, 0), "value": torch.zeros(0, 0)}
    for name in seen:
        layer.get_submodule(name).register_forward_hook(lambda _, given, made, name=name: seen.update({name: made}))
    y = layer(x)
    w_q, w_k, w_v = (part.weight.T for part in (layer.query, layer.key, layer.value))
    by_hand, a = weigh(x @ w_q, x @ w_k, x @ w_v)
    weights = attend(layer.query(x), layer.key(x), layer.value(x))[1]
    model, states, targets = build_random_model(), sample_normal(1, 5, 12), sample_normal(1, 3, 12)
    cross = model.writer.stack.blocks[0].cross
    kept, heads = cross.project_memory(states), compute_heads(cross, targets, memory=states)
    keys, values = (torch.stack(parts, 2) for parts in ([h.k for h in heads], [h.v for h in heads]))
    return build_result(
        expect_equal("K, N_X x D_Q", format_shape(seen["key"]), "5 x 11"),
        expect_equal("V, N_X x D_V", format_shape(seen["value"]), "5 x 13"),
        expect_equal("A, N_Q x N_X", format_shape(weights), "5 x 5"),
        expect_equal("Y, N_Q x D_V", format_shape(y), "5 x 13"),
        expect_near("K: difference from X W_K", max_difference(seen["key"], x @ w_k), 0, within=1e-12),
        expect_near("V: difference from X W_V", max_difference(seen["value"], x @ w_v), 0, within=1e-12),
        expect_near("A: difference from softmax(Q K^T / √D_Q)", max_difference(weights, a), 0, within=1e-12),
        expect_near("Y: difference from softmax(Q K^T / √D_Q) V", max_difference(y, by_hand), 0, within=1e-12),
        expect_near("built decoder, K = H W_K: difference", max_difference(kept.keys, keys), 0, within=1e-12),
        expect_near("built decoder, V = H W_V: difference", max_difference(kept.values, values), 0, within=1e-12),
        expect_near(
            "built decoder, cross-attention: difference from the formula",
            measure_layer(cross, targets, memory=states),
            0,
            within=1e-12,
        ),
    )


@check(
    43,
    "S3:681",
    "dim=1 of a matrix makes each row sum to 1; with a batch in front only dim=-1 does.",
    formula=r"\sum_j \softmax(E)_{i,j} = 1",
    code=(masked_softmax, SelfAttention),
    breaks=("uniform-attention", "softmax-over-queries", "weights-not-normalized", "attention-off-by-one"),
)
def which_axis() -> CheckResult:
    e, batch = sample_normal(5, 7), sample_normal(2, 5, 7)
    ones = torch.ones(2, 5).double()
    model, x = build_random_model(), sample_normal(2, 5, 12)
    layer = model.reader.stack.blocks[0].self
    with torch.no_grad(), record(layer) as maps:
        layer(x)
    weights = next(iter(maps.values()))  # sentences, heads, queries, keys
    by_hand = torch.stack([head.a for head in compute_heads(layer, x)], 1)
    return build_result(
        expect_near(
            "matrix: difference of the weights from exp(e) / sum of the row",
            max_difference(masked_softmax(e, None), e.exp() / e.exp().sum(1, keepdim=True)),
            0,
            within=1e-12,
        ),
        expect_near(
            "batch with dim=-1: distance of row sums from 1",
            max_difference(masked_softmax(batch, None).sum(-1), ones),
            0,
            within=1e-12,
        ),
        expect_near(
            "batch with dim=-1: difference from one matrix after the other",
            max(max_difference(masked_softmax(batch, None)[i], compute_softmax(batch[i])) for i in range(2)),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "batch with dim=1: distance of row sums from 1", max_difference(batch.softmax(1).sum(-1), ones), 0.1
        ),
        expect_near(
            "built encoder, weights (sentence, head, query, key): distance of their sums over keys from 1",
            max_difference(weights.sum(-1), torch.ones(2, 3, 5).double()),
            0,
            within=1e-12,
        ),
        expect_near("built encoder: difference from the formula", max_difference(weights, by_hand), 0, within=1e-12),
        expect_near("its output: difference from the formula", measure_layer(layer, x), 0, within=1e-12),
    )


@check(
    44,
    "S1:80-111,135",
    "In the worked example, weights 0.6, 0.1, 0.2 and 0.1 give the context 0.6 v1 + 0.1 v2 + 0.2 v3 + 0.1 v4.",
    formula=r"\softmax(q \cdot k_1, \dots, q \cdot k_4) = (0.6, 0.1, 0.2, 0.1)",
    code=(attend, dot, CrossAttention),
    breaks=("uniform-attention", "attention-off-by-one", "doubled-values", "dot-products-scaled"),
)
def worked_example() -> CheckResult:
    weights = torch.tensor([0.6, 0.1, 0.2, 0.1])
    q, k = torch.tensor([[1.0, 0.0]]), torch.stack([weights.log() + 3, torch.arange(4.0)], 1)
    v = torch.tensor([[2.0], [3.0], [5.0], [7.0]])
    c, a = attend(q, k, v, score=dot)
    layer = attend_in_layer(q, k, v, scaled=False)
    return build_result(
        expect_near("largest difference of the weights, in float32", max_difference(a[0], weights), 0, within=1e-7),
        expect_near("context c for the values 2, 3, 5, 7", float(c), 3.2, within=1e-6),
        expect_near("cross-attention: difference of its weights", max_difference(layer.a[0], weights), 0, within=1e-7),
        expect_near("cross-attention: context c", float(layer.y.detach()), 3.2, within=1e-6),
        expect_near("cross-attention in a decoding step: context c", float(layer.steps), 3.2, within=1e-6),
    )


@check(
    45,
    "S2:81",
    "Scaled dot-product attention is one line, and equals that of PyTorch.",
    formula=r"\mathrm{Attention}(Q, K, V) = \softmax(\frac{Q K^\top}{\sqrt{d_k}}) V",
    code=(attend, scaled_dot, backends.sdpa_attention),
    breaks=(
        "uniform-attention",
        "unscaled-scores",
        "scores-divided-by-the-width",
        "unmasked-attention",
        "padding-not-masked",
    ),
)
def against_pytorch() -> CheckResult:
    q, k, v = sample_normal(2, 3, 5, 7), sample_normal(2, 3, 11, 7), sample_normal(2, 3, 11, 13)
    keep = torch.arange(11) < torch.tensor([[11], [6]])
    real, scale = masks.padding(keep), 7**-0.5
    q_pos, k_pos = torch.arange(5)[None], torch.arange(11)[None]
    theirs = F.scaled_dot_product_attention(q, k, v)
    masked = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
    fused = backends.sdpa_attention(q, k, v, scale=scale, mask=real, q_pos=q_pos, k_pos=k_pos)
    explicit, _ = backends.explicit_attention(q, k, v, scale=scale, allowed=real.to_dense(q_pos, k_pos)[:, None])
    return build_result(
        expect_near("largest difference", max_difference(attend(q, k, v)[0], theirs), 0, within=1e-10),
        expect_near(
            "with padding: largest difference",
            max_difference(attend(q, k, v, mask=keep[:, None, None])[0], masked),
            0,
            within=1e-10,
        ),
        expect_near("fused attention of a model, with padding", max_difference(fused, masked), 0, within=1e-10),
        expect_near("explicit attention of a model, with padding", max_difference(explicit, masked), 0, within=1e-10),
        *compare_ways(q[0, 0], k[0, 0], v[0, 0, :, :7], within=1e-10),
    )


@check(
    46,
    "S2:144-146",
    "Q, K and V have one row for each word; W_Q and W_K are embedding width x d_k.",
    formula=r"Q, K \in \R^{L \times d_k}, \quad V \in \R^{L \times d_v}, \quad W_Q, W_K \in \R^{D \times d_k}",
    code=(AttentionLayer, SelfAttention),
    breaks=("uniform-attention", "key-and-value-widths-swapped", "queries-from-the-key-matrix", "values-are-keys"),
)
def sizes() -> CheckResult:
    layer, x = AttentionLayer(16, key_dim=5, value_dim=7).double(), sample_normal(11, 16)
    w_q, w_k, w_v = (part.weight.T for part in (layer.query, layer.key, layer.value))
    built = build_random_model(["reader.stack.head_dim=5"]).reader.stack.blocks[0].self
    words = sample_normal(1, 11, 12)
    parts, heads = built.project(words), compute_heads(built, words)
    by_hand = [torch.stack(made, 2) for made in ([h.q for h in heads], [h.k for h in heads], [h.v for h in heads])]
    return build_result(
        expect_equal(
            "Q and K, L x d_k", f"{format_shape(layer.query(x))}, {format_shape(layer.key(x))}", "11 x 5, 11 x 5"
        ),
        expect_equal("V, L x d_v", format_shape(layer.value(x)), "11 x 7"),
        expect_equal("W_Q and W_K, D x d_k", f"{format_shape(w_q)}, {format_shape(w_k)}", "16 x 5, 16 x 5"),
        expect_equal("output, L x d_v", format_shape(layer(x)), "11 x 7"),
        expect_near(
            "output: difference from the formula",
            max_difference(layer(x), weigh(x @ w_q, x @ w_k, x @ w_v)[0]),
            0,
            within=1e-12,
        ),
        expect_equal(
            "an encoder of width 12 with 3 heads of d_k = 5: Q, K and V, sentence x L x heads x d_k",
            ", ".join(map(format_shape, parts)),
            ", ".join(["1 x 11 x 3 x 5"] * 3),
        ),
        expect_near(
            "its Q, K and V: difference from X W",
            max(max_difference(part, made) for part, made in zip(parts, by_hand, strict=True)),
            0,
            within=1e-12,
        ),
        expect_near(
            "its output: difference from the formula",
            measure_layer(built, words),
            0,
            within=1e-12,
        ),
    )
