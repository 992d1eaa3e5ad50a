"""Checks on multi-head attention: three forms, PyTorch's layer, widths, and the two attentions of a decoder."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from saccade.layers.attention import masks
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.multihead import CrossAttention, HeadProjection, SelfAttention
from saccade.layers.record import record
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Matrix
from saccade.lectures.references.basics import apply_layer_norm, build_causal_mask, embed
from saccade.lectures.references.comparing import build_padded_batch, build_random_model, compare_model, measure_layer
from saccade.lectures.references.transformer import compute_attention, compute_heads, encode
from saccade.lectures.small import count_parameters, format_shape, max_difference, randomize_parameters, sample_normal
from saccade.model.model import Model

SHAPES = {"paper": "3 x 3 x 4 x 12", "full": "3 x 3 x 12 x 12", "split": "3 x 3 x 4 x 4"}  # d = 12, h = 3
FORMS = {"paper": 1_048_576, "full": 8_388_608, "split": 98_304}  # parameters at d = 512, h = 8, without biases


@check(
    63,
    "S3:1213-1365, S2:148, S4:79-88",
    "Heads run in parallel with their own weights; the notes have three forms with different parameter counts.",
    formula=r"\text{paper:~} 4 d^2, \quad \text{full~width:~} 4 h d^2, \quad \text{split~input:~} \frac{3 d^2}{h}",
    code=(SelfAttention, HeadProjection),
    breaks=(
        "uniform-attention",
        "heads-share-their-matrices",
        "heads-of-full-width",
        "values-of-another-head",
        "unscaled-scores",
    ),
)
@torch.no_grad()
def three_forms() -> CheckResult:
    compared: list[Comparison] = []
    keep = torch.arange(5) < torch.tensor([[5], [3]])
    for form, expected in FORMS.items():
        layer = build_random_model([f"reader.stack.head_projection={form}"]).reader.stack.blocks[0].self
        x = sample_normal(2, 5, 12)
        difference = measure_layer(layer, x, real=keep)  # the formula is a loop over heads
        shape = format_shape(layer.project.weight)
        with torch.device("meta"):
            large = SelfAttention(512, heads=8, form=form, bias=False)  # type: ignore[arg-type]
        compared += [
            expect_equal(f"{form}, d = 12: matrices, heads x (Q, K, V) x features x inputs", shape, SHAPES[form]),
            expect_near(f"{form}: all heads at once, difference from a loop", difference, 0, within=1e-12),
            expect_equal(
                f"{form}: heads whose weights change with the matrices of head 2, of 3",
                str(_find_changed_heads(layer, x)),
                "[2]",
            ),
            expect_equal(f"{form}: parameters at d = 512, h = 8", count_parameters(large), expected),
        ]
    return build_result(*compared)


def record_layer(layer: nn.Module, x: Tensor, mask: Mask | None = None) -> Tensor:
    """Return the attention weights of a layer (B, H, Q, K)."""
    with record(layer) as maps:
        layer(x, mask=mask)
    return next(iter(maps.values()))


def _find_changed_heads(layer: SelfAttention, x: Tensor) -> list[int]:
    """Return the heads whose attention weights change when the matrices of the second one do."""
    other = copy.deepcopy(layer)
    other.project.weight[1] *= -0.5
    change = (record_layer(other, x) - record_layer(layer, x)).abs().amax((0, 2, 3))
    return [number + 1 for number, value in enumerate(change.tolist()) if value > 1e-9]


@check(
    64,
    "S2:83, S4:88",
    "MultiHead concatenates the heads and multiplies by W_O; it equals PyTorch's layer with the same weights.",
    formula=r"\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h) W^O",
    code=(SelfAttention, CrossAttention),
    breaks=(
        "uniform-attention",
        "unscaled-scores",
        "output-matrix-dropped",
        "values-of-another-head",
        "padding-not-masked",
    ),
)
@torch.no_grad()
def against_pytorch() -> CheckResult:
    model = build_random_model()
    block = model.writer.stack.blocks[0]
    ours, cross = block.self, block.cross
    theirs, other = (nn.MultiheadAttention(12, 3, batch_first=True).double() for _ in range(2))
    _copy_weights(theirs, ours.project.weight, ours.project.bias, ours.heads.out)
    weights = torch.cat((cross.query.weight, cross.memory.weight), 1)
    _copy_weights(other, weights, torch.cat((cross.query.bias, cross.memory.bias), 1), cross.heads.out)
    x, y = sample_normal(2, 7, 12), sample_normal(2, 4, 12)
    keep = torch.arange(7) < torch.tensor([[7], [5]])
    expected, average = theirs(x, x, x, key_padding_mask=~keep, average_attn_weights=False)
    causal = theirs(x, x, x, attn_mask=torch.ones(7, 7, dtype=torch.bool).triu(1), need_weights=False)[0]
    crossed = other(y, x, x, key_padding_mask=~keep, need_weights=False)[0]
    real = masks.padding(keep)
    differences = {
        "self-attention with padding": max_difference(ours(x, mask=real), expected),
        "its attention weights": max_difference(record_layer(ours, x, mask=real), average),
        "causal self-attention": max_difference(ours(x, mask=masks.causal()), causal),
        "cross-attention with padding": max_difference(cross(y, cross.project_memory(x), mask=keep), crossed),
        "Concat(head_1, ..., head_h) W_O by hand": max_difference(
            compute_attention(ours, x, allowed=keep[:, None]), expected
        ),
    }
    return build_result(
        *(expect_near(f"{name}: largest difference", d, 0, within=1e-12) for name, d in differences.items())
    )


def _copy_weights(theirs: Any, weight: Tensor, bias: Tensor, out: nn.Module) -> None:
    """Copy our matrices, stored head by head, into PyTorch's layer."""
    theirs.in_proj_weight.copy_(weight.transpose(0, 1).reshape(36, 12))
    theirs.in_proj_bias.copy_(bias.transpose(0, 1).flatten())
    theirs.out_proj.load_state_dict(out.state_dict())


@check(
    65,
    "S4:77-82",
    "Heads project to spaces of width d/h; in the paper's form the number of parameters does not depend on h.",
    formula=r"d_k = d_v = \frac{d}{h}, \quad 4 d^2 + 4 d \text{~for~every~} h",
    code=(SelfAttention, HeadProjection),
    breaks=(
        "uniform-attention",
        "heads-of-full-width",
        "heads-share-their-matrices",
        "scores-scaled-by-the-model-width",
    ),
)
@torch.no_grad()
def width_of_a_head() -> CheckResult:
    compared, x = [], sample_normal(1, 24, 16) / 4
    for heads in (1, 2, 4, 8):
        layer = SelfAttention(16, heads=heads).double()
        logs = record_layer(layer, x)[0].clamp(min=1e-300).log()  # scores, up to a constant for each query
        centred = logs - logs.mean(-1, keepdim=True)
        ranks = torch.linalg.matrix_rank(centred, rtol=1e-9).tolist()
        apart = min((max_difference(a, b) for i, a in enumerate(centred) for b in centred[:i]), default=1.0)
        compared += [
            expect_equal(f"h = {heads}: rank of the scores of each head, d/h", str(ranks), str([16 // heads] * heads)),
            expect_equal(f"h = {heads}: parameters", count_parameters(layer), 4 * 16**2 + 4 * 16),
            expect_at_least(f"h = {heads}: smallest difference of the scores of two heads", apart, 1e-3),
            expect_near(
                f"h = {heads}: difference from the formula",
                measure_layer(layer, x),
                0,
                within=1e-12,
            ),
        ]
    return build_result(*compared)


@check(
    68,
    "S4:173-182",
    "The decoder has masked self-attention and cross-attention, whose keys and values are computed only once.",
    formula=r"Q = Y W_Q, \quad K = H W_K, \quad V = H W_V \quad (H \text{~from~the~encoder})",
    code=(CrossAttention,),
    breaks=(
        "uniform-attention",
        "unmasked-attention",
        "cross-attention-dropped",
        "keys-and-values-swapped",
        "memory-projected-at-every-step",
        "padding-not-masked",
    ),
)
@torch.no_grad()
def decoder_attention() -> CheckResult:
    model, batch = build_random_model(), build_padded_batch()
    source, target = batch["source"], batch["target"]
    memory, made = model.read(batch), [0]
    with record(model) as maps:
        states = model.writer(target.ids, target.mask, memory)
    hooks = [
        layer.cross.memory.register_forward_hook(lambda *_: made.__setitem__(0, made[0] + 1))
        for layer in model.writer.stack.blocks
    ]
    state, steps = model.writer.start(memory, capacity=target.ids.shape[1]), list[Tensor]()
    for ids in target.ids.split(1, 1):
        step = model.writer.step(ids, state)
        state, steps = step.state, [*steps, step.logits]
    for hook in hooks:
        hook.remove()
    own = [a for name, a in maps.items() if name.startswith("writer") and name.endswith("self")]
    cross = [a for name, a in maps.items() if name.endswith("cross")] or [torch.ones(2, 3, 5, 7).double()]
    logits = model.writer.head(states)
    return build_result(
        *compare_model(model, batch),
        _compare_cross_weights(model, cross[0], batch),
        expect_equal(
            "largest self-attention weight on a later word",
            max((float(a.triu(1).max()) for a in own), default=1.0),
            0.0,
        ),
        expect_equal(
            "shapes of cross-attention weights, target words x source words",
            str([tuple(a.shape[2:]) for a in cross]),
            "[(5, 7), (5, 7)]",
        ),
        expect_equal("largest cross-attention weight on padding", max(float(a[1, :, :, 4:].max()) for a in cross), 0.0),
        expect_equal("key and value projections for 5 decoding steps, 2 layers and 1 source batch", made[0], 2),
        expect_near(
            "one word at a time: difference from all words at once",
            max_difference(torch.stack(steps, 1)[target.mask], logits[target.mask]),
            0,
            within=1e-9,
        ),
        *_compare_sources(model, source.ids, target.ids, states),
    )


def _compare_cross_weights(model: Model, found: Tensor, batch: Any) -> Comparison:
    """Compare the first cross-attention with queries of the decoder, and keys of the encoder's output."""
    source, block = batch["source"], model.writer.stack.blocks[0]
    memory = encode(model, source.ids, source.mask)
    x = embed(model.writer.embedding, batch["target"].ids)
    causal = build_causal_mask(x.shape[1])
    queries = apply_layer_norm(block.residuals[0].norm, x + compute_attention(block.self, x, allowed=causal))
    heads = compute_heads(block.cross, queries, memory=memory, allowed=source.mask[:, None])
    difference = max_difference(found, torch.stack([head.a for head in heads], 1))
    return expect_near("cross-attention weights: difference from the formula", difference, 0, within=1e-5)


def _compare_sources(model: Model, source: Tensor, target: Tensor, states: Tensor) -> list[Comparison]:
    """Change a source word, and what stands in padding."""
    mask = torch.arange(source.shape[1]) < torch.tensor([[7], [4]])
    other, padded = source.clone(), source.clone()
    other[:, 1], padded[1, 4:] = 15, 15
    words, padding = (model.writer(target, None, model.reader(ids, mask)) for ids in (other, padded))
    return [
        expect_at_least(
            "another source word: smallest change of a state", float((words - states).abs().amax(-1).min()), 1e-6
        ),
        expect_near("other padding: largest change of a state", max_difference(padding, states), 0, within=1e-12),
    ]


@check(
    114,
    "S2:159-163",
    "The outputs of all heads are concatenated and multiplied by W_O.",
    formula=r"Y = \mathrm{Concat}(A_1 V_1, \dots, A_h V_h) W^O",
    code=(SelfAttention,),
    breaks=(
        "uniform-attention",
        "output-matrix-dropped",
        "values-of-another-head",
        "heads-share-their-matrices",
        "doubled-values",
    ),
)
@torch.no_grad()
def putting_it_together() -> CheckResult:
    layer = build_random_model().reader.stack.blocks[0].self
    randomize_parameters(layer)
    x = sample_normal(1, 5, 12)
    heads = compute_heads(layer, x)
    joined = torch.cat([head.y for head in heads], -1)
    y, weights = layer(x), record_layer(layer, x)[0]  # heads x 5 x 5
    without = copy.deepcopy(layer)
    without.heads.out = nn.Identity()
    caption = "Attention weights of three heads on the same five vectors, side by side: each head attends differently."
    return build_result(
        expect_near(
            "weights A of the heads: difference from softmax(Q K^T / √d_k)",
            max_difference(weights, torch.stack([head.a[0] for head in heads])),
            0,
            within=1e-12,
        ),
        expect_near(
            "the layer without W_O: difference from the concatenated heads",
            max_difference(without(x), joined),
            0,
            within=1e-12,
        ),
        expect_near(
            "concatenated heads times W_O: difference from the layer's output",
            max_difference(y, joined @ layer.heads.out.weight.T + layer.heads.out.bias),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "smallest difference between the weights of two heads",
            min(max_difference(weights[i], weights[j]) for i in range(3) for j in range(i)),
            0.01,
        ),
        drawing=Matrix("query", "key, head by head", torch.cat(list(weights), 1).tolist(), caption),
    )
