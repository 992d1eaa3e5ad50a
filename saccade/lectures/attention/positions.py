"""Rows about positions: sines and cosines, their layouts, and what else may take their place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saccade.layers.attention.positions import Alibi, Bucketed, Learned, Rotary, Shaw, Sinusoidal
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, near, same
from saccade.lectures.drawing import Lines, Matrix
from saccade.lectures.small import apart, small_model
from saccade.model.readers.tokens import Embedding

WIDTH = 512  # of the paper


def encoded(count: int, width: int = WIDTH, *, layout: str = "interleaved", frequencies: str = "paper") -> Tensor:
    """PE of positions 0, 1, 2 ..., one row each."""
    block = Sinusoidal(width, layout=layout, frequencies=frequencies)  # type: ignore[arg-type]
    return block(torch.arange(count)[None])[0].double()


@check(
    60,
    "S3:1123-1132",
    "Positions are added to the word vectors or concatenated with them, from a learned table or a fixed function.",
    formula=r"x_i + E(i) \quad \text{or} \quad (x_i; E(i))",
    code=(Embedding, Learned, Sinusoidal),
)
def four_modes() -> Measured:
    compared = []
    for kind in ("sinusoidal", "learned"):
        for how in ("add", "concat"):
            changes = [f"{part}.positions={{kind='{kind}', how='{how}'}}" for part in ("reader", "writer")]
            model = small_model([*changes, "writer.tie=none"])
            layer: Embedding = model.reader.embedding
            ids, at = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 1, 2]])
            words = layer.tokens(ids) * layer.scale
            assert layer.positions is not None
            where = layer.positions(at).to(words.dtype).expand(1, -1, -1)
            wanted = words + where if how == "add" else torch.cat((words, where), -1)
            difference = apart(layer(ids), wanted)
            compared.append(near(f"{kind}, {how}: largest difference from the formula", difference, 0, within=1e-12))
            compared.append(same(f"{kind}, {how}: width of the words", words.shape[-1], 12 if how == "add" else 6))
    return measured(*compared)


@check(
    70,
    "S4:144-146",
    "Sines stand in the even, cosines in the odd columns; a step of k positions turns every pair by a fixed angle.",
    formula=r"\mathrm{PE}(p, 2i) = \sin(p / 10000^{2i/d}), \quad \mathrm{PE}(p, 2i+1) = \cos(p / 10000^{2i/d})",
    code=(Sinusoidal,),
)
def rotation() -> Measured:
    pe = encoded(60)
    golden = {(1, 0): math.sin(1), (1, 1): math.cos(1), (7, 100): math.sin(7 / 10000 ** (100 / 512))}
    worst = max(abs(float(pe[place]) - value) for place, value in golden.items())
    step = 5
    angles = step / 10000 ** (torch.arange(0, WIDTH, 2).double() / WIDTH)
    sin, cos = pe[:-step, 0::2], pe[:-step, 1::2]
    turned = torch.stack((sin * angles.cos() + cos * angles.sin(), cos * angles.cos() - sin * angles.sin()), -1)
    twice = apart(pe[:, 0::2], pe[:, 1::2])
    return measured(
        near("largest difference from three values by hand", worst, 0, within=1e-6),
        near(
            "PE(p + 5) against a rotation of PE(p) that does not depend on p",
            apart(pe[step:], turned.flatten(1)),
            0,
            within=1e-5,
        ),
        at_least("difference of even and odd columns, which the slide both calls 2i", twice, 0.5),
    )


@check(
    71,
    "S2:172-176",
    "The concatenated layout has the paper's columns in another order; that of tensor2tensor has other frequencies.",
    formula=r"\mathrm{PE}(p, i) = \sin(p / 10000^{i/d_m}), \quad \mathrm{PE}(p, d_m + i) = \cos(p / 10000^{i/d_m})",
    code=(Sinusoidal,),
)
def layouts() -> Measured:
    paper, notes = encoded(50, 16), encoded(50, 16, layout="concatenated")
    other = encoded(50, 16, layout="concatenated", frequencies="tensor2tensor")
    by_hand = torch.tensor(
        [
            [math.sin(p / 10000 ** (i / 8)) for i in range(8)] + [math.cos(p / 10000 ** (i / 8)) for i in range(8)]
            for p in range(50)
        ]
    )
    order = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    return measured(
        near("our concatenated layout against the notes' formula", apart(notes, by_hand.double()), 0, within=1e-5),
        same("the paper's columns 0, 2, 4 ... 1, 3, 5 ...: largest difference", apart(paper[:, order], notes), 0.0),
        at_least("tensor2tensor and fairseq divide by (half - 1): largest difference", apart(notes, other), 0.1),
    )


@check(
    72,
    "S2:183",
    "Proximity is encoded: PE(p).PE(p + k) depends on k alone and falls for k up to 40 at d = 512.",
    formula=r"\mathrm{PE}(p) \cdot \mathrm{PE}(p + k) = \sum_i \cos(k / 10000^{2i/d})",
    code=(Sinusoidal,),
)
def proximity() -> Measured:
    pe = encoded(200)
    products = torch.stack([(pe[:100] * pe[k : 100 + k]).sum(-1) for k in range(101)])  # k by p
    means = products.mean(1)
    falls = int((means[1:41] < means[:40]).sum())
    caption = "PE(p).PE(p + k) at d = 512: the nearer two words stand, the larger the product."
    return measured(
        at_most("largest spread over p, for any k", float((products.amax(1) - products.amin(1)).max()), 1e-2),
        same("steps from k to k + 1 that fall, of the first 40", falls, 40),
        near("PE(p).PE(p) = d / 2", float(means[0]), WIDTH / 2, within=1e-3),
        drawing=Lines("k", "PE(p) · PE(p + k)", {"d = 512": ([float(k) for k in range(101)], means.tolist())}, caption),
    )


@check(
    73,
    "S2:190",
    "Geometrically every pair of columns is the hand of a clock: a point on a circle, fast in front, slow at the end.",
    formula=r"\mathrm{PE}(p, 2i)^2 + \mathrm{PE}(p, 2i+1)^2 = 1",
    code=(Sinusoidal,),
)
def clocks() -> Measured:
    pe = encoded(100, 64)
    radius = pe[:, 0::2] ** 2 + pe[:, 1::2] ** 2
    turns = torch.atan2(pe[1, 0::2], pe[1, 1::2])
    caption = "Positional encodings of 50 positions at d = 64: one row for each position."
    return measured(
        near("largest distance of a squared radius from 1", float((radius - 1).abs().max()), 0, within=1e-5),
        near("turn of the first hand at each step, in radians", float(turns[0]), 1, within=1e-5),
        near("turn of the last hand, 10000^(-62/64)", float(turns[-1]), 10000 ** (-62 / 64), within=1e-8),
        drawing=Matrix("position", "column", pe[:50].tolist(), caption),
    )


KINDS = {
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
    "Positions could be anything that encodes order: learned tables, relative vectors, biases, rotations.",
    formula=r"f(s(x)) \neq s(f(x))",
    code=(Learned, Rotary, Shaw, Bucketed, Alibi),
)
def other_kinds() -> Measured:
    ids, order = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([4, 2, 0, 1, 3])
    compared = []
    for kind, knows in KINDS.items():
        model = small_model([f"reader.positions={{kind='{kind}'}}", "reader.stack.dim=24", "writer.stack.dim=24"])
        mask = torch.ones_like(ids, dtype=torch.bool)
        before, after = model.reader(ids, mask).states, model.reader(ids[:, order], mask).states
        difference = apart(before[:, order], after)
        name = f"{kind}: difference when words are permuted"
        compared.append(at_least(name, difference, 1e-4) if knows else at_most(name, difference, 1e-12))
    return measured(*compared)
