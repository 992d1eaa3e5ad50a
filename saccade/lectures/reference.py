"""The Transformer of the notes in plain matrix products: what checks compare saccade's layers and models with.

Only the parameters of a module are read. None of its code runs, so a mistake there cannot hide itself here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.layers.attention import masks
from saccade.layers.attention.multihead import CrossAttention
from saccade.layers.record import record
from saccade.lectures.claims import Comparison, expect_near
from saccade.lectures.small import build_small_model, load_small_recipe, max_difference
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.predict.predictors.predictor import Predictor

NORM_EPSILON = 1e-5
MODEL_TOLERANCE = 1e-5  # sinusoids of a model are float32
ScoreFn = Callable[[int, Tensor, Tensor], Tensor]  # head, queries (B, Q, E), keys (B, K, E) -> scores (B, Q, K)


class Head(NamedTuple):
    """One head of attention in the letters of the notes: Q, K, V, E = f(Q, K), A = softmax(E), Y = A V."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    a: Tensor
    y: Tensor


def normalize_scores(e: Tensor, allowed: Tensor | None = None) -> Tensor:
    """a_ij = exp(e_ij) / sum_k exp(e_ik), where only the allowed keys count; zeros if there are none."""
    powers = (e - e.amax(-1, keepdim=True)).exp()
    powers = powers if allowed is None else torch.where(allowed, powers, 0.0)
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)


def weigh(
    q: Tensor, k: Tensor, v: Tensor, *, allowed: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Y = A V and A = softmax(scale Q K^T); the scale is 1/√D_Q unless given."""
    e = torch.einsum("...qe,...ke->...qk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    a = normalize_scores(e, allowed)
    return torch.einsum("...qk,...ke->...qe", a, v), a


def get_projections(layer: Any, head: int) -> list[tuple[Tensor, Tensor | float]]:
    """W_Q, W_K and W_V of a head (features x inputs), each with its bias."""
    parts = [layer.query, layer.memory] if isinstance(layer, CrossAttention) else [layer.project]
    weights = [matrix for part in parts for matrix in part.weight[head]]
    biases = [b for part in parts for b in ([0.0] * part.weight.shape[1] if part.bias is None else part.bias[head])]
    return list(zip(weights, biases, strict=True))


def compute_heads(
    layer: Any, x: Tensor, *, memory: Tensor | None = None, allowed: Tensor | None = None, score: ScoreFn | None = None
) -> list[Head]:
    """Every head of self-attention on x (B, N, D), or of cross-attention from x to `memory`."""
    count = len((layer.query if isinstance(layer, CrossAttention) else layer.project).weight)
    heads = []
    for number in range(count):
        (w_q, b_q), (w_k, b_k), (w_v, b_v) = get_projections(layer, number)
        own, source = x, x if memory is None else memory
        if w_q.shape[1] < x.shape[-1]:  # each head has its own slice of the input
            own, source = (part.unflatten(-1, (count, -1))[..., number, :] for part in (own, source))
        q, k, v = own @ w_q.T + b_q, source @ w_k.T + b_k, source @ w_v.T + b_v
        e = q @ k.mT / math.sqrt(q.shape[-1]) if score is None else score(number, q, k)
        a = normalize_scores(e, allowed)
        heads.append(Head(q, k, v, e, a, a @ v))
    return heads


def compute_attention(
    layer: Any, x: Tensor, *, memory: Tensor | None = None, allowed: Tensor | None = None, score: ScoreFn | None = None
) -> Tensor:
    """Concat(head_1, ..., head_h) W_O; without W_O where heads split the input."""
    heads = compute_heads(layer, x, memory=memory, allowed=allowed, score=score)
    joined = torch.cat([head.y for head in heads], -1)
    out = layer.heads.out
    if isinstance(out, nn.Identity):
        return joined
    return joined @ out.weight.T + (0.0 if out.bias is None else out.bias)


def compute_norm(norm: Any, h: Tensor) -> Tensor:
    """gamma (h - mu) / sigma + beta over the D features of each vector; no norm where the model has none."""
    if isinstance(norm, nn.Identity):
        return h
    mu = h.sum(-1, keepdim=True) / h.shape[-1]
    variance = ((h - mu) ** 2).sum(-1, keepdim=True) / h.shape[-1]
    return norm.weight * (h - mu) / (variance + NORM_EPSILON).sqrt() + norm.bias


def compute_feedforward(network: Any, x: Tensor) -> Tensor:
    """max(0, x W_1 + b_1) W_2 + b_2"""
    hidden = (x @ network.up.weight.T + network.up.bias).clamp(min=0)
    return hidden @ network.down.weight.T + network.down.bias


def compute_block(
    block: Any,
    x: Tensor,
    *,
    allowed: Tensor | None = None,
    memory: Tensor | None = None,
    memory_allowed: Tensor | None = None,
    adds: bool = True,
) -> Tensor:
    """LayerNorm(x + f(x)) for self-attention, cross-attention and feed-forward; LayerNorm(f(x)) if not `adds`."""
    sublayers: list[Callable[[Tensor], Tensor]] = [lambda h: compute_attention(block.self, h, allowed=allowed)]
    if block.cross is not None:
        sublayers.append(lambda h: compute_attention(block.cross, h, memory=memory, allowed=memory_allowed))
    if block.feedforward is not None:
        sublayers.append(lambda h: compute_feedforward(block.feedforward, h))
    for sublayer, residual in zip(sublayers, block.residuals, strict=True):
        x = compute_norm(residual.norm, x + sublayer(x) if adds else sublayer(x))
    return x


def compute_sinusoids(count: int, dim: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)), one row for each position."""
    rows = []
    for p in range(count):
        angles = [p / 10000 ** (2 * i / dim) for i in range(dim // 2)]
        rows.append([f(angle) for angle in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64)


def embed(embedding: Any, ids: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """√D times the word vectors, plus `positions`, by default the sinusoids."""
    words = embedding.tokens.weight[ids] * math.sqrt(embedding.tokens.weight.shape[1])
    return words + (compute_sinusoids(ids.shape[1], words.shape[-1]) if positions is None else positions)


def encode(model: Model, ids: Tensor, mask: Tensor, *, x: Tensor | None = None, adds: bool = True) -> Tensor:
    """The states of a post-norm encoder; `x` replaces the embedded words."""
    x = embed(model.reader.embedding, ids) if x is None else x
    for block in model.reader.stack.blocks:
        x = compute_block(block, x, allowed=mask[:, None], adds=adds)
    return x


def decode(model: Model, ids: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
    """The states of a post-norm decoder, whose position i attends to positions up to i and to all real words read."""
    x = embed(model.writer.embedding, ids)
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    for block in model.writer.stack.blocks:
        x = compute_block(block, x, allowed=causal, memory=memory, memory_allowed=memory_mask[:, None])
    return x


def randomize(module: nn.Module, spread: float = 0.3) -> None:
    """Add noise to all parameters: biases and norms, which begin with 0 and 1, must count too."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)


def build_random_model(changes: list[str] | None = None) -> Model:
    """Build the small `transformer` in float64 with random parameters, biases and norms included."""
    model = build_small_model(changes or [])
    randomize(model)
    return model


def build_padded_batch() -> Batch:
    """Build two sentence pairs of different lengths, so that sources and targets are padded."""
    source, target = pad([[5, 6, 7, 8, 9, 5, 11], [10, 11, 6, 12]]), pad([[12, 13, 14, 15, 8], [15, 16, 17]])
    return Batch({"source": source, "target": target})


class Attended(NamedTuple):
    """What multi-head attention computes for given queries, keys and values."""

    y: Tensor  # by the fused kernel
    a: Tensor  # recorded weights
    steps: Tensor  # one query at a time, as in decoding


def attend_in_layer(
    q: Tensor, k: Tensor, v: Tensor, *, scaled: bool = True, score: Any = None, keep: Tensor | None = None
) -> Attended:
    """Run saccade's cross-attention with one head and identity matrices, so that its inputs are Q, K and V.

    Matrices have one row for each vector; values have at most as many features as keys. `keep`: which keys are real.
    """
    width = q.shape[-1]
    layer = CrossAttention(width, heads=1, memory_dim=2 * width, form=width, bias=False, scale=scaled).to(q.dtype)
    if score is not None:
        layer.heads.set_score(score)
    eye: Any = torch.eye(2 * width, dtype=q.dtype)
    with torch.no_grad():
        layer.query.weight.copy_(eye[:width, :width])
        layer.memory.weight.copy_(eye.view(2, width, 2 * width))
        layer.heads.out.weight.copy_(eye[:width, :width])  # type: ignore[operator]
    memory = torch.cat((k, v, v.new_zeros(len(v), width - v.shape[1])), -1)[None]
    projected, mask = layer.project_memory(memory), None if keep is None else keep[None]
    y = layer(q[None], projected, mask=mask)
    with record(layer) as maps:
        layer(q[None], projected, mask=mask)
    with torch.no_grad():
        steps = torch.cat([layer(row[None, None], projected, mask=mask) for row in q], 1)
    a = next(iter(maps.values()), torch.zeros(1, 1, len(q), len(k), dtype=q.dtype))
    return Attended(y[0, :, : v.shape[1]], a[0, 0], steps[0, :, : v.shape[1]])


def measure_layer(
    layer: Any, x: Tensor, *, memory: Tensor | None = None, score: ScoreFn | None = None, real: Tensor | None = None
) -> float:
    """Return how far self-attention on x, or cross-attention from x to `memory`, is from the formula.

    Both implementations are measured: the fused one, and the explicit one, which runs while weights are recorded.
    `real`: which positions are no padding.
    """
    allowed = None if real is None else real[:, None]
    expected = compute_attention(layer, x, memory=memory, allowed=allowed, score=score)
    if memory is not None:
        kept = layer.project_memory(memory)
        outputs = run_both(layer, lambda: layer(x, kept, mask=real))
    else:
        outputs = run_both(layer, lambda: layer(x, mask=None if real is None else masks.padding(real)))
    return max(max_difference(found, expected) for found in outputs)


def run_both(module: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """Run attention by fused kernels, and again by the explicit implementation."""
    fused = run()
    with record(module):
        return [fused, run()]


def compare_model(model: Model, batch: Batch) -> list[Comparison]:
    """Expect the states of encoder and decoder, at real positions of a padded batch, to be those of the formulas.

    Attention is computed by fused kernels and again explicitly.
    """
    source, target = batch["source"], batch["target"]
    with torch.no_grad():
        states = encode(model, source.ids, source.mask)
        expected = decode(model, target.ids, states, source.mask)
        read = run_both(model, lambda: model.read(batch).states)
        written = run_both(model, lambda: model.writer(target.ids, target.mask, model.read(batch)))
    return [
        expect_near(f"built model, {name}: difference from the formulas", difference, 0, within=MODEL_TOLERANCE)
        for name, difference in {
            "encoder": max(max_difference(found[source.mask], states[source.mask]) for found in read),
            "decoder": max(max_difference(found[target.mask], expected[target.mask]) for found in written),
        }.items()
    ]


def build_word_predictor(text: str, changes: Sequence[str] = ()) -> Predictor:
    """Build a predictor of the small `transformer` with random parameters whose tokens are the words of a text."""
    recipe = load_small_recipe(["tokenizer.kind=words", *changes])
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(text, text)])
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size).eval()
    randomize(model)
    return recipe.task.get_predictor(recipe)(model, recipe=recipe, tokenizers=tokenizers)
