"""Checks on masks: causal masking, masking before and after the softmax, and recorded attention weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.layers.attention import masks
from saccade.layers.attention.masks import Causal
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.scores import masked_softmax
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
from saccade.lectures.drawing import Matrix
from saccade.lectures.references.basics import build_causal_mask, embed
from saccade.lectures.references.comparing import (
    attend_in_layer,
    build_padded_batch,
    build_random_model,
    build_word_predictor,
    compare_model,
    run_both,
)
from saccade.lectures.references.transformer import compute_heads
from saccade.lectures.small import VOCABULARY_SIZE, max_difference, randomize_parameters
from saccade.model.build.model import build

SENTENCE = "the cat saw the dog"


@check(
    61,
    "S3:1142-1176",
    "Masked self-attention does not look ahead: changing x_j leaves every earlier output unchanged, bit for bit.",
    formula=r"E_{i,j} = -\infty \quad (j > i)",
    code=(Causal, SelfAttention, masked_softmax),
    breaks=(
        "uniform-attention",
        "unmasked-attention",
        "causal-mask-one-ahead",
        "causal-mask-hides-the-query",
        "mask-of-minus-twenty",
    ),
)
@torch.no_grad()
def no_look_ahead() -> CheckResult:
    model, batch = build_random_model(), build_padded_batch()
    ids, source = torch.tensor([[5, 6, 7, 8, 9, 10, 11]]), batch["source"]
    memory = model.reader(source.ids[:1], source.mask[:1])
    blocks = model.writer.stack.blocks
    with record(model.writer) as maps:
        model.writer(ids, None, memory)
    causal = build_causal_mask(7)
    heads = compute_heads(blocks[0].self, embed(model.writer.embedding, ids), allowed=causal)
    weights = maps.get("stack.blocks.0.self", torch.ones(1, 3, 7, 7).double())[0]
    caption = "Attention weights of a decoder, layer 1, head 1: query i (row) attends to keys 1 to i (columns)."
    names = [str(i) for i in range(1, 8)]
    return build_result(
        *_compare_look_ahead("decoder", lambda rows: model.writer(rows, None, memory.repeat_rows(8)), ids),
        *_compare_look_ahead("language model", _build_language_model(), ids),
        expect_near(
            "decoder: weights, difference from softmax(E + M)",
            max_difference(weights, torch.stack([head.a[0] for head in heads])),
            0,
            within=1e-6,
        ),
        expect_equal("largest weight above the diagonal", float(weights.triu(1).max()), 0.0),
        expect_equal("attention weights of the first position", str(weights[0, 0].tolist()), str([1.0] + [0.0] * 6)),
        *compare_model(model, batch),
        drawing=Matrix("query", "key", weights[0].tolist(), caption, names, names),
    )


def _build_language_model() -> Any:
    """Build a small GPT-2; return the function from ids to its states."""
    sizes = ("layers=2", "dim=12", "heads=3", "ff=17", "dropout=0.0")
    recipe = load("gpt2", overrides=[*(f"writer.stack.{size}" for size in sizes), "writer.dropout=0.0"])
    model = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()
    randomize_parameters(model)
    return lambda rows: model.writer(rows, None, None)


def _compare_look_ahead(name: str, run: Any, ids: Tensor) -> list[Comparison]:
    """Change one word at a time: all rows of one batch, of which the first stays as it is."""
    count = ids.shape[1]
    rows = ids.repeat(count + 1, 1)
    rows[torch.arange(1, count + 1), torch.arange(count)] = 15
    states = run(rows)
    changed = (states[1:] != states[:1]).any(-1)  # word that was changed x position
    return [
        expect_equal(f"{name}: earlier outputs that changed, of 21", int(changed.tril(-1).sum()), 0),
        expect_equal(f"{name}: own and later outputs that changed, of 28", int(changed.triu().sum()), 28),
    ]


@check(
    62,
    "S4:190-214",
    "Setting scores to -∞ before the softmax equals masking after it and renormalising; only the first is always safe.",
    formula=r"\softmax(E + M)_{i,j} = \frac{m_{i,j} \, \softmax(E)_{i,j}}{\sum_k m_{i,k} \, \softmax(E)_{i,k}}",
    code=(masked_softmax, SelfAttention),
    breaks=("uniform-attention", "unmasked-attention", "mask-of-minus-twenty", "mask-after-the-softmax"),
)
@torch.no_grad()
def mask_and_renormalise() -> CheckResult:
    e = (torch.rand(5, 7, dtype=torch.float64) * 2 - 1) * 20
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    compared = [
        expect_near(
            "largest difference, |scores| ≤ 20, double precision",
            max_difference(masked_softmax(e, mask), mask_and_normalize(e, mask)),
            0,
            within=1e-12,
        )
    ]
    for kind, lead in ((torch.float32, 110.0), (torch.float64, 750.0)):
        scores = torch.zeros(1, 3, dtype=kind)
        scores[0, 2] = lead  # the masked position
        allowed = torch.tensor([[True, True, False]])
        name = f"{str(kind).removeprefix('torch.')}, a masked score leads by {lead:.0f}: "
        q, k, v = (torch.tensor(rows, dtype=kind) for rows in ([[1.0]], [[0.0], [0.0], [lead]], [[2.0], [4.0], [9.0]]))
        layer = attend_in_layer(q, k, v, scaled=False, keep=allowed[0])
        outputs = [masked_softmax(scores, allowed)[0, 0], layer.a[0, 0], layer.y[0, 0], layer.steps[0, 0]]
        broken = mask_and_normalize(scores, allowed)
        compared += [
            expect_equal(f"{name}renormalised gives 0/0", bool(broken.isnan().any()), True),
            expect_equal(f"{name}-∞ gives 0/0", bool(torch.stack(outputs).isnan().any()), False),
            expect_near(f"{name}-∞ gives the right weight", float(outputs[0]), 0.5, within=1e-6),
            expect_near(f"{name}multi-head attention, weight", float(outputs[1]), 0.5, within=1e-6),
            expect_near(f"{name}multi-head attention, output", float(outputs[2]), 3, within=1e-5),
            expect_near(f"{name}a decoding step, output", float(outputs[3]), 3, within=1e-5),
        ]
    return build_result(*compared, *_compare_decoder())


def _compare_decoder() -> list[Comparison]:
    """Compare a decoder's masked self-attention with that of all words, masked and renormalized."""
    model, batch = build_random_model(), build_padded_batch()
    ids, layer = batch["target"].ids, model.writer.stack.blocks[0].self
    x, causal = embed(model.writer.embedding, ids), build_causal_mask(ids.shape[1])
    with record(model.writer) as maps:
        model.writer(ids, batch["target"].mask, model.read(batch))
    heads = compute_heads(layer, x)
    weights = [mask_and_normalize(head.e, causal) for head in heads]
    joined = torch.cat([a @ head.v for a, head in zip(weights, heads, strict=True)], -1)
    expected = joined @ layer.heads.out.weight.T + layer.heads.out.bias
    found = run_both(layer, lambda: layer(x, mask=masks.causal()))
    differences = {
        "weights": max_difference(maps.get("stack.blocks.0.self", x.new_ones(2, 3, 5, 5)), torch.stack(weights, 1)),
        "output": max(max_difference(y, expected) for y in found),
    }
    return [
        expect_near(f"built decoder, {name}: difference from renormalising", d, 0, within=1e-6)
        for name, d in differences.items()
    ]


def mask_and_normalize(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute masked weights as the slide does: softmax over all positions, then mask and normalize."""
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = powers / powers.sum(-1, keepdim=True) * mask
    return weights / weights.sum(-1, keepdim=True)


@check(
    69,
    "S4:164-166",
    "The attention weights of every layer and head of the encoder can be recorded; each row is a distribution.",
    formula=r"A^{(\ell,h)} \in \R^{N \times N}, \quad \sum_j A^{(\ell,h)}_{i,j} = 1",
    code=(SelfAttention, record),
    breaks=(
        "uniform-attention",
        "positions-dropped",
        "recorded-weights-of-another-head",
        "only-the-first-head-recorded",
        "unscaled-scores",
    ),
)
@torch.no_grad()
def every_head_can_be_seen() -> CheckResult:
    sizes = [f"{part}.stack.{size}" for part in ("reader", "writer") for size in ("dim=32", "heads=2")]
    concat = [f"{part}.positions={{kind='sinusoidal', combine='concat'}}" for part in ("reader", "writer")]
    predictor = build_word_predictor(SENTENCE, [*sizes, *concat, "writer.tie=none"])
    model: Any = predictor.model
    layers = [block.self for block in model.reader.stack.blocks]
    _write_known_heads(layers[0], model.reader.embedding.tokens.weight)
    inputs: list[Tensor] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].clone()))
    found = predictor.attention(SENTENCE, "")
    maps = [found.maps[name] for name in found.maps if name.startswith("reader.")] or [torch.zeros(2, 6, 6)]
    expected = [[head.a[0] for head in compute_heads(layer, x)] for layer, x in zip(layers, inputs, strict=False)]
    pairs = [(maps[i][j], a) for i, heads in enumerate(expected[: len(maps)]) for j, a in enumerate(heads)]
    worst = max((max_difference(weights, a) for weights, a in pairs), default=1.0)
    first = maps[0].double()
    ids = torch.tensor([predictor.tokenizers.source.encode(SENTENCE)])
    mask = torch.ones_like(ids, dtype=torch.bool)
    plain = model.reader(ids, mask).states
    with record(model):
        recorded = model.reader(ids, mask).states
    caption = (
        f"Recorded weights of two heads on “{SENTENCE}”: the left one attends to the word before, the right one to the "
        "same word."
    )
    words = [label.strip("␣<>") for label in found.source_labels]
    return build_result(
        expect_equal("attention maps of 2 layers x 2 heads", sum(len(part) for part in maps), 4),
        expect_near("weights: largest difference from softmax(Q K^T / √d)", worst, 0, within=1e-5),
        expect_at_most(
            "largest distance of a row's sum from 1", max(float((part.sum(-1) - 1).abs().max()) for part in maps), 1e-5
        ),
        expect_equal(
            "head whose queries are positions shifted by one: words attended most",
            str(first[0].argmax(-1).tolist()),
            str([0, 0, 1, 2, 3, 4][: len(words)]),
        ),
        expect_at_least("its smallest weight on the word before", float(first[0].diagonal(-1).min()), 0.9),
        expect_near(
            "head whose queries are words: weight of “the” on “the” in the other place",
            float(first[1][0, 3]),
            0.5,
            within=0.05,
        ),
        expect_near("outputs with and without recording: difference", max_difference(plain, recorded), 0, within=1e-4),
        drawing=Matrix("query", "key, head by head", torch.cat(list(first), 1).tolist(), caption, words, words * 2),
        note="The matrices of these two heads were written by hand; saccade view shows the weights of a trained run.",
    )


def _write_known_heads(layer: Any, words: Tensor) -> None:
    """Set W_Q and W_K: head 1 attends to the position before, head 2 to the same word.

    The first 16 features of an input are the word, the others sines and cosines of its position. Queries of head 1 are
    positions rotated back by one step.
    """
    width, sharpness = 16, 8.0
    layer.project.weight[:, :2] = 0
    layer.project.bias[:, :2] = 0
    for i in range(0, width, 2):
        angle = 1 / 10000 ** (i / width)
        back = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        layer.project.weight[0, 0, i : i + 2, width + i : width + i + 2] = sharpness * torch.tensor(back)
        layer.project.weight[0, 1, i : i + 2, width + i : width + i + 2] = sharpness * torch.eye(2)
    words /= words.norm(dim=1, keepdim=True)
    for part in range(2):
        layer.project.weight[1, part, :, :width] = 2 * torch.eye(width)
