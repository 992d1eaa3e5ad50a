"""Checks on positions: sinusoids, their layouts and geometry, and alternatives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from saccade.layers.attention.positions import Alibi, Bucketed, Learned, Rotary, Shaw, Sinusoidal
from saccade.lectures.attention.permutation import measure_order_dependence
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
from saccade.lectures.drawing import Lines, Matrix
from saccade.lectures.references.basics import compute_sinusoids
from saccade.lectures.references.comparing import MODEL_TOLERANCE, build_random_model, measure_layer, run_both
from saccade.lectures.references.transformer import ScoreFn, encode
from saccade.lectures.small import max_difference, sample_normal
from saccade.model.readers.tokens import Embedding

WIDTH = 512  # model width of the paper


def encode_positions(
    count: int, width: int = WIDTH, *, layout: str = "interleaved", frequencies: str = "paper"
) -> Tensor:
    """Return the sinusoidal encodings of positions 0, 1, 2, ..., one row each."""
    block = Sinusoidal(width, layout=layout, frequencies=frequencies)  # type: ignore[arg-type]
    return block(torch.arange(count)[None])[0].double()


def measure_positions(*changes: str, length: int = 20) -> Tensor:
    """Return what a built encoder adds to its word vectors: the same word at every position, minus the word."""
    model = build_random_model([f"reader.{change}" for change in changes])
    embedding: Any = model.reader.embedding
    with torch.no_grad():
        word = embedding.tokens.weight[7] * math.sqrt(embedding.tokens.weight.shape[1])
        return embedding(torch.full((1, length), 7))[0] - word


@check(
    60,
    "S3:1123-1132",
    "Positions are added to the word vectors or concatenated with them, from a learned table or a fixed function.",
    formula=r"x_i + E(i) \quad \text{or} \quad (x_i; E(i))",
    code=(Embedding, Learned, Sinusoidal),
    breaks=(
        "uniform-attention",
        "positions-dropped",
        "positions-off-by-one",
        "positions-before-words",
        "embeddings-not-scaled",
    ),
)
@torch.no_grad()
def four_modes() -> CheckResult:
    compared = []
    for kind in ("sinusoidal", "learned"):
        for how in ("add", "concat"):
            changes = [f"{part}.positions={{kind='{kind}', combine='{how}'}}" for part in ("reader", "writer")]
            model = build_random_model([*changes, "writer.tie=none"])
            layer: Any = model.reader.embedding
            ids = torch.tensor([[5, 6, 7], [8, 9, 5]])
            width = 12 if how == "add" else 6
            words = layer.tokens.weight[ids] * math.sqrt(width)
            fixed = compute_sinusoids(3, width)
            where = (fixed if kind == "sinusoidal" else layer.positions.table.weight[:3]).expand(2, -1, -1)
            expected = words + where if how == "add" else torch.cat((words, where), -1)
            mask = torch.tensor([[True, True, True], [True, True, False]])
            by_hand = encode(model, ids, mask, x=expected)
            states = run_both(model, lambda: model.reader(ids, mask).states)  # noqa: B023  # it is called at once
            compared += [
                expect_near(
                    f"{kind}, {how}: largest difference from the formula",
                    max_difference(layer(ids), expected),
                    0,
                    within=1e-6,
                ),
                expect_equal(f"{kind}, {how}: width of the word vectors", words.shape[-1], width),
                expect_near(
                    f"{kind}, {how}: states of the encoder, difference from the formulas",
                    max(max_difference(found[mask], by_hand[mask]) for found in states),
                    0,
                    within=MODEL_TOLERANCE,
                ),
            ]
    return build_result(*compared)


@check(
    70,
    "S4:144-146",
    "Even columns are sines, odd columns cosines; a shift by k positions rotates every pair by a fixed angle.",
    formula=r"\mathrm{PE}(p, 2i) = \sin(p / 10000^{2i/d}), \quad \mathrm{PE}(p, 2i+1) = \cos(p / 10000^{2i/d})",
    code=(Sinusoidal, Embedding),
    breaks=(
        "positions-dropped",
        "positions-off-by-one",
        "sines-and-cosines-swapped",
        "sinusoids-of-base-1000",
        "sinusoids-of-tensor2tensor",
    ),
)
def rotation() -> CheckResult:
    pe = encode_positions(60)
    golden = {(1, 0): math.sin(1), (1, 1): math.cos(1), (7, 100): math.sin(7 / 10000 ** (100 / 512))}
    worst = max(abs(float(pe[place]) - value) for place, value in golden.items())
    step = 5
    angles = step / 10000 ** (torch.arange(0, WIDTH, 2).double() / WIDTH)
    sin, cos = pe[:-step, 0::2], pe[:-step, 1::2]
    rotated = torch.stack((sin * angles.cos() + cos * angles.sin(), cos * angles.cos() - sin * angles.sin()), -1)
    twice = max_difference(pe[:, 0::2], pe[:, 1::2])
    return build_result(
        expect_near("largest difference from three values by hand", worst, 0, within=1e-6),
        expect_near(
            "all 60 x 512: difference from the formula",
            max_difference(pe, compute_sinusoids(60, WIDTH)),
            0,
            within=1e-6,
        ),
        expect_near(
            "what a built encoder adds to a word: difference from the formula",
            max_difference(measure_positions(), compute_sinusoids(20, 12)),
            0,
            within=1e-6,
        ),
        expect_near(
            "PE(p + 5): difference from a rotation of PE(p) that does not depend on p",
            max_difference(pe[step:], rotated.flatten(1)),
            0,
            within=1e-5,
        ),
        expect_at_least("difference of even and odd columns, which the slide both calls 2i", twice, 0.5),
    )


@check(
    71,
    "S2:172-176",
    "The concatenated layout permutes the paper's columns; that of tensor2tensor also has other frequencies.",
    formula=r"\mathrm{PE}(p, i) = \sin(p / 10000^{i/d_m}), \quad \mathrm{PE}(p, d_m + i) = \cos(p / 10000^{i/d_m})",
    code=(Sinusoidal, Embedding),
    breaks=(
        "sinusoids-always-interleaved",
        "sinusoids-of-the-paper",
        "sinusoids-of-tensor2tensor",
        "sines-and-cosines-swapped",
        "positions-off-by-one",
    ),
)
def layouts() -> CheckResult:
    paper, notes = encode_positions(50, 16), encode_positions(50, 16, layout="concatenated")
    other = encode_positions(50, 16, layout="concatenated", frequencies="tensor2tensor")
    order = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    kind = "positions={kind='sinusoidal', layout='concatenated'"
    built, theirs = measure_positions(f"{kind}}}"), measure_positions(f"{kind}, frequencies='tensor2tensor'}}")
    return build_result(
        expect_near(
            "our concatenated layout: difference from the notes' formula",
            max_difference(notes, _concatenate_sinusoids(50, 8, 8)),
            0,
            within=1e-6,
        ),
        expect_equal(
            "the paper's columns 0, 2, 4 ... 1, 3, 5 ...: largest difference",
            max_difference(paper[:, order], notes),
            0.0,
        ),
        expect_at_least(
            "tensor2tensor and fairseq divide by (half - 1): largest difference", max_difference(notes, other), 0.1
        ),
        expect_near(
            "their values: difference from the formula with half - 1",
            max_difference(other, _concatenate_sinusoids(50, 8, 7)),
            0,
            within=1e-6,
        ),
        expect_near(
            "built encoder, concatenated: difference from the notes' formula",
            max_difference(built, _concatenate_sinusoids(20, 6, 6)),
            0,
            within=1e-6,
        ),
        expect_near(
            "built encoder, tensor2tensor: difference from the formula with half - 1",
            max_difference(theirs, _concatenate_sinusoids(20, 6, 5)),
            0,
            within=1e-6,
        ),
    )


def _concatenate_sinusoids(count: int, half: int, divisor: int) -> Tensor:
    """sin(p / 10000^(i/divisor)) for i below `half`, then the cosines."""
    angles = [[p / 10000 ** (i / divisor) for i in range(half)] for p in range(count)]
    rows = [[f(angle) for f in (math.sin, math.cos) for angle in row] for row in angles]
    return torch.tensor(rows, dtype=torch.float64)


@check(
    72,
    "S2:183",
    "Proximity is encoded: PE(p) · PE(p + k) depends on k alone and falls for k up to 40 at d = 512.",
    formula=r"\mathrm{PE}(p) \cdot \mathrm{PE}(p + k) = \sum_i \cos(k / 10000^{2i/d})",
    code=(Sinusoidal, Embedding),
    breaks=(
        "positions-dropped",
        "sinusoids-of-base-1000",
        "sinusoids-of-tensor2tensor",
        "embeddings-not-scaled",
    ),
)
def proximity() -> CheckResult:
    pe = encode_positions(200)
    products = torch.stack([(pe[:100] * pe[k : 100 + k]).sum(-1) for k in range(101)])  # k by p
    means = products.mean(1)
    falls = int((means[1:41] < means[:40]).sum())
    sums = [sum(math.cos(k / 10000 ** (2 * i / WIDTH)) for i in range(WIDTH // 2)) for k in range(101)]
    small = measure_positions()
    near = [sum(math.cos(k / 10000 ** (2 * i / 12)) for i in range(6)) for k in range(20)]
    caption = "PE(p) · PE(p + k) at d = 512: the closer two positions are, the larger the product."
    return build_result(
        expect_at_most("largest spread over p, for any k", float((products.amax(1) - products.amin(1)).max()), 1e-2),
        expect_near(
            "difference from the sum of cosines", max_difference(means, torch.tensor(sums).double()), 0, within=1e-3
        ),
        expect_equal("steps from k to k + 1 that fall, of the first 40", falls, 40),
        expect_near("PE(p) · PE(p) = d / 2", float(means[0]), WIDTH / 2, within=1e-3),
        expect_near(
            "what a built encoder adds at d = 12, first and other positions: difference from the sum of cosines",
            max_difference(small @ small[0], torch.tensor(near).double()),
            0,
            within=1e-5,
        ),
        drawing=Lines("k", "PE(p) · PE(p + k)", {"d = 512": ([float(k) for k in range(101)], means.tolist())}, caption),
    )


@check(
    73,
    "S2:190",
    "Every pair of columns is like the hand of a clock: a point on a circle, first pairs fast, last pairs slow.",
    formula=r"\mathrm{PE}(p, 2i)^2 + \mathrm{PE}(p, 2i+1)^2 = 1",
    code=(Sinusoidal, Embedding),
    breaks=(
        "positions-dropped",
        "sinusoids-of-base-1000",
        "sines-and-cosines-swapped",
        "sinusoids-of-tensor2tensor",
        "embeddings-not-scaled",
    ),
)
def clocks() -> CheckResult:
    pe = encode_positions(100, 64)
    radius = pe[:, 0::2] ** 2 + pe[:, 1::2] ** 2
    turns = torch.atan2(pe[1, 0::2], pe[1, 1::2])
    built = measure_positions()
    hands = torch.atan2(built[1, 0::2], built[1, 1::2])
    steady = max_difference(pe[:, 0::2], torch.sin(torch.arange(100).double()[:, None] * turns))
    caption = "Positional encodings of 50 positions at d = 64: one row for each position."
    return build_result(
        expect_near("largest distance of a squared radius from 1", float((radius - 1).abs().max()), 0, within=1e-5),
        expect_near("rotation of the first pair per position, in radians", float(turns[0]), 1, within=1e-5),
        expect_near(
            "rotation of the last pair per position, 10000^(-62/64)", float(turns[-1]), 10000 ** (-62 / 64), within=1e-8
        ),
        expect_near("every hand turns at its own constant speed: difference", steady, 0, within=1e-4),
        expect_near(
            "built encoder, d = 12: rotations per position, difference from 10000^(-2i/12)",
            max_difference(hands, torch.tensor([10000 ** (-2 * i / 12) for i in range(6)]).double()),
            0,
            within=1e-6,
        ),
        drawing=Matrix("position", "column", pe[:50].tolist(), caption),
    )


ORDER_AWARE_KINDS = {
    "sinusoidal": True,
    "learned": True,
    "rotary": True,
    "shaw": True,
    "bucketed": True,
    "alibi": True,
    "none": False,
}


@check(
    74,
    "S2:198-200, S4:151-153",
    "Positions can be anything that encodes order: learned tables, relative vectors, biases, rotations.",
    formula=r"f(s(x)) \neq s(f(x))",
    code=(Learned, Rotary, Shaw, Bucketed, Alibi),
    breaks=(
        "uniform-attention",
        "positions-dropped",
        "rotary-without-rotation",
        "relative-positions-dropped",
        "relative-positions-reversed",
        "score-terms-unscaled",
    ),
)
@torch.no_grad()
def other_kinds() -> CheckResult:
    compared = []
    sizes = ["reader.stack.dim=24", "writer.stack.dim=24", "reader.stack.heads=4"]
    for kind, knows in ORDER_AWARE_KINDS.items():
        model = build_random_model([f"reader.positions={{kind='{kind}'}}", *sizes])
        difference = measure_order_dependence(model)
        name = f"{kind}: difference when words are permuted"
        compared.append(expect_at_least(name, difference, 1e-4) if knows else expect_at_most(name, difference, 1e-12))
        compared.append(_compare_scores(kind, model.reader.stack.blocks[0].self))
    return build_result(*compared)


def _compare_scores(kind: str, layer: Any) -> Comparison:
    """Compare the self-attention of an encoder with these positions with the formula of its paper."""
    x, term = sample_normal(2, 20, 24), layer.heads.term
    n, width = 20, 6
    distance = torch.arange(n) - torch.arange(n)[:, None]  # key minus query
    scores: dict[str, ScoreFn] = {
        "rotary": lambda head, q, k: _rotate(q) @ _rotate(k).mT / math.sqrt(width),
        "shaw": lambda head, q, k: (
            (q @ k.mT + torch.einsum("bqe,qke->bqk", q, term.table.weight[_clip(distance, term.max_distance)]))
            / math.sqrt(width)
        ),
        "bucketed": lambda head, q, k: q @ k.mT / math.sqrt(width) + term.table.weight[_find_buckets(distance), head],
        "alibi": lambda head, q, k: q @ k.mT / math.sqrt(width) - 2.0 ** (-2 * (head + 1)) * distance.abs(),
    }
    difference = measure_layer(layer, x, score=scores.get(kind))
    return expect_near(f"{kind}: self-attention, difference from the formula", difference, 0, within=1e-5)


def _rotate(x: Tensor) -> Tensor:
    """Rotate the pairs of features at position p by p / 10000^(2i/E) (Su et al. 2021, equation 34)."""
    width = x.shape[-1]
    rows = []
    for p in range(x.shape[1]):
        for i in range(0, width, 2):
            cos, sin = math.cos(p / 10000 ** (i / width)), math.sin(p / 10000 ** (i / width))
            rows += [x[:, p, i] * cos - x[:, p, i + 1] * sin, x[:, p, i] * sin + x[:, p, i + 1] * cos]
    return torch.stack(rows, -1).unflatten(-1, (-1, width))


def _clip(distance: Tensor, limit: int) -> Tensor:
    """Return the row of Shaw's table for each distance."""
    return distance.clamp(-limit, limit) + limit


def _find_buckets(distance: Tensor) -> Tensor:
    """Return T5's buckets: 32 in all, 16 for each direction, of which 8 are exact (Raffel et al. 2020)."""

    def find(d: int) -> int:
        side, near = (16 if d > 0 else 0), abs(d)
        return side + (near if near < 8 else min(15, 8 + int(math.log(near / 8) / math.log(128 / 8) * 8)))

    return torch.tensor([[find(int(d)) for d in row] for row in distance])
