"""Checks on positions: sinusoids, their layouts and geometry, and alternatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saccade.layers.attention.positions import Alibi, Bucketed, Learned, Rotary, Shaw, Sinusoidal
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines, Matrix
from saccade.lectures.small import build_small_model, max_difference
from saccade.model.readers.tokens import Embedding

WIDTH = 512  # model width of the paper


def encode_positions(
    count: int, width: int = WIDTH, *, layout: str = "interleaved", frequencies: str = "paper"
) -> Tensor:
    """Return the sinusoidal encodings of positions 0, 1, 2, ..., one row each."""
    block = Sinusoidal(width, layout=layout, frequencies=frequencies)  # type: ignore[arg-type]
    return block(torch.arange(count)[None])[0].double()


@check(
    60,
    "S3:1123-1132",
    "Positions are added to the word vectors or concatenated with them, from a learned table or a fixed function.",
    formula=r"x_i + E(i) \quad \text{or} \quad (x_i; E(i))",
    code=(Embedding, Learned, Sinusoidal),
)
def four_modes() -> CheckResult:
    compared = []
    for kind in ("sinusoidal", "learned"):
        for how in ("add", "concat"):
            changes = [f"{part}.positions={{kind='{kind}', combine='{how}'}}" for part in ("reader", "writer")]
            model = build_small_model([*changes, "writer.tie=none"])
            layer: Embedding = model.reader.embedding
            ids, at = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 1, 2]])
            words = layer.tokens(ids) * layer.scale
            assert layer.positions is not None
            where = layer.positions(at).to(words.dtype).expand(1, -1, -1)
            expected = words + where if how == "add" else torch.cat((words, where), -1)
            difference = max_difference(layer(ids), expected)
            compared.append(
                expect_near(f"{kind}, {how}: largest difference from the formula", difference, 0, within=1e-12)
            )
            compared.append(
                expect_equal(f"{kind}, {how}: width of the word vectors", words.shape[-1], 12 if how == "add" else 6)
            )
    return build_result(*compared)


@check(
    70,
    "S4:144-146",
    "Even columns are sines, odd columns cosines; a shift by k positions rotates every pair by a fixed angle.",
    formula=r"\mathrm{PE}(p, 2i) = \sin(p / 10000^{2i/d}), \quad \mathrm{PE}(p, 2i+1) = \cos(p / 10000^{2i/d})",
    code=(Sinusoidal,),
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
    code=(Sinusoidal,),
)
def layouts() -> CheckResult:
    paper, notes = encode_positions(50, 16), encode_positions(50, 16, layout="concatenated")
    other = encode_positions(50, 16, layout="concatenated", frequencies="tensor2tensor")
    by_hand = torch.tensor(
        [
            [math.sin(p / 10000 ** (i / 8)) for i in range(8)] + [math.cos(p / 10000 ** (i / 8)) for i in range(8)]
            for p in range(50)
        ]
    )
    order = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    return build_result(
        expect_near(
            "our concatenated layout: difference from the notes' formula",
            max_difference(notes, by_hand.double()),
            0,
            within=1e-5,
        ),
        expect_equal(
            "the paper's columns 0, 2, 4 ... 1, 3, 5 ...: largest difference",
            max_difference(paper[:, order], notes),
            0.0,
        ),
        expect_at_least(
            "tensor2tensor and fairseq divide by (half - 1): largest difference", max_difference(notes, other), 0.1
        ),
    )


@check(
    72,
    "S2:183",
    "Proximity is encoded: PE(p) · PE(p + k) depends on k alone and falls for k up to 40 at d = 512.",
    formula=r"\mathrm{PE}(p) \cdot \mathrm{PE}(p + k) = \sum_i \cos(k / 10000^{2i/d})",
    code=(Sinusoidal,),
)
def proximity() -> CheckResult:
    pe = encode_positions(200)
    products = torch.stack([(pe[:100] * pe[k : 100 + k]).sum(-1) for k in range(101)])  # k by p
    means = products.mean(1)
    falls = int((means[1:41] < means[:40]).sum())
    caption = "PE(p) · PE(p + k) at d = 512: the closer two positions are, the larger the product."
    return build_result(
        expect_at_most("largest spread over p, for any k", float((products.amax(1) - products.amin(1)).max()), 1e-2),
        expect_equal("steps from k to k + 1 that fall, of the first 40", falls, 40),
        expect_near("PE(p) · PE(p) = d / 2", float(means[0]), WIDTH / 2, within=1e-3),
        drawing=Lines("k", "PE(p) · PE(p + k)", {"d = 512": ([float(k) for k in range(101)], means.tolist())}, caption),
    )


@check(
    73,
    "S2:190",
    "Every pair of columns is like the hand of a clock: a point on a circle, first pairs fast, last pairs slow.",
    formula=r"\mathrm{PE}(p, 2i)^2 + \mathrm{PE}(p, 2i+1)^2 = 1",
    code=(Sinusoidal,),
)
def clocks() -> CheckResult:
    pe = encode_positions(100, 64)
    radius = pe[:, 0::2] ** 2 + pe[:, 1::2] ** 2
    turns = torch.atan2(pe[1, 0::2], pe[1, 1::2])
    caption = "Positional encodings of 50 positions at d = 64: one row for each position."
    return build_result(
        expect_near("largest distance of a squared radius from 1", float((radius - 1).abs().max()), 0, within=1e-5),
        expect_near("rotation of the first pair per position, in radians", float(turns[0]), 1, within=1e-5),
        expect_near(
            "rotation of the last pair per position, 10000^(-62/64)", float(turns[-1]), 10000 ** (-62 / 64), within=1e-8
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
)
def other_kinds() -> CheckResult:
    ids, order = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([4, 2, 0, 1, 3])
    compared = []
    for kind, knows in ORDER_AWARE_KINDS.items():
        model = build_small_model([f"reader.positions={{kind='{kind}'}}", "reader.stack.dim=24", "writer.stack.dim=24"])
        mask = torch.ones_like(ids, dtype=torch.bool)
        before, after = model.reader(ids, mask).states, model.reader(ids[:, order], mask).states
        difference = max_difference(before[:, order], after)
        name = f"{kind}: difference when words are permuted"
        compared.append(expect_at_least(name, difference, 1e-4) if knows else expect_at_most(name, difference, 1e-12))
    return build_result(*compared)
