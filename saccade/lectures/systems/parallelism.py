"""Checks on parallelism: sequential operations of layers, and the receptive field of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_equal, expect_near
from saccade.lectures.drawing import Lines
from saccade.lectures.references.recurrent import unroll
from saccade.lectures.references.transformer import compute_attention
from saccade.lectures.scale.graphs import find_dependencies
from saccade.lectures.small import max_difference, randomize_parameters, sample_normal
from saccade.lectures.systems.recurrent_models import build_random

WIDTH = 12  # of the small models
LENGTHS = (16, 32, 64)
FEW_WORDS = 9
PRODUCT_OPERATIONS = ("mm", "addmm", "bmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")

Layer = Callable[[Tensor], Tensor]


class ProductCounter(TorchDispatchMode):
    """Counts calls of matrix multiplications and convolutions, each of which is parallel in itself."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ in PRODUCT_OPERATIONS
        return function(*args, **(kwargs or {}))


def build_recurrent() -> RecurrentStack:
    """Build the encoder of the recipe `sutskever` with one layer of an Elman network."""
    changes = [f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("cell=rnn", "layers=1")]
    stack: RecurrentStack = build_random("sutskever", [*changes, "reader.stack.reverse=false"]).reader.stack
    return stack


def build_convolution(layers: int = 1, kernel: int = 3) -> ConvolutionStack:
    """Build the encoder of the recipe `convs2s`."""
    changes = [f"reader.stack.layers={layers}", f"reader.stack.kernel={kernel}", "writer.stack.layers=1"]
    changes += [f"{part}.stack.hidden_dim={WIDTH}" for part in ("reader", "writer")]
    stack: ConvolutionStack = build_random("convs2s", changes).reader.stack
    return stack


def build_attention() -> SelfAttention:
    layer = SelfAttention(WIDTH, heads=2).double()
    randomize_parameters(layer)
    return layer


@torch.no_grad()
def count_products(layer: Layer, n: int) -> int:
    """Count the matrix products that a layer computes one after the other for a sequence of n words."""
    with ProductCounter() as counted:
        layer(sample_normal(1, n, WIDTH))
    return counted.count


@check(
    10,
    "S1:37-49",
    "A recurrent network computes one step after the other; convolution and self-attention process all in parallel.",
    formula=r"\text{sequential~operations:~} n \text{~against~} O(1)",
    code=(RecurrentStack, ConvolutionStack, SelfAttention),
    recipes=("bytenet", "convs2s"),
    breaks=("encoder-forgets-its-state", "attention-one-query-at-a-time", "convolution-one-position-at-a-time",
            "uniform-attention"),
)  # fmt: skip
@torch.no_grad()
def sequential_steps() -> CheckResult:
    recurrent, convolution, attention = build_recurrent(), build_convolution(), build_attention()
    every: dict[str, Layer] = {
        "recurrent": lambda x: recurrent(x, None)[0],
        "convolution": lambda x: convolution(x, None)[0],
        "self-attention": attention,
    }
    counts = {name: [count_products(layer, n) for n in LENGTHS] for name, layer in every.items()}
    x = sample_normal(1, 9, WIDTH)
    steps = torch.stack([state[0] for state in unroll("rnn", recurrent.layers[0], x[0])])
    more = LENGTHS[-1] - LENGTHS[0]
    curves = {name: ([float(n) for n in LENGTHS], [float(v) for v in values]) for name, values in counts.items()}
    caption = "Matrix products of one layer that are computed one after the other, against the length of the sequence."
    return build_result(
        *(
            expect_equal(f"{name}: more products for {more} more words", values[-1] - values[0], expected)
            for (name, values), expected in zip(counts.items(), (more, 0, 0), strict=True)
        ),
        expect_near(
            "recurrent: difference from one step after the other", max_difference(recurrent(x, None)[0][0], steps), 0,
            within=1e-12,
        ),
        expect_near("self-attention: difference from the formula", _compare_attention(attention), 0, within=1e-12),
        drawing=Lines("n", "products", curves, caption, log_x=True, log_y=True),
    )  # fmt: skip


@check(
    13,
    "S2:52-53",
    "Recurrent networks are not parallel; the receptive field of convolutions is limited by their filters.",
    formula=r"\mathrm{field} = 1 + L (k - 1)",
    code=(RecurrentStack, ConvolutionStack, SelfAttention),
    breaks=("convolution-sees-all-positions", "convolution-sees-one-position", "encoder-forgets-its-state",
            "encoder-shortcut-through-time", "attention-to-the-first-key", "uniform-attention"),
)  # fmt: skip
@torch.no_grad()
def limited_by_filters() -> CheckResult:
    compared, words = [], 41
    for layers, k in ((1, 3), (4, 3), (4, 5)):
        stack = build_convolution(layers, k)
        field = find_dependencies(lambda x, stack=stack: stack(x, None)[0], words, WIDTH)[words // 2]  # type: ignore[misc]
        name = f"{layers} layers of k = {k}"
        compared += [
            expect_equal(f"receptive field of the middle word, {name}", int(field.sum()), 1 + layers * (k - 1)),
            expect_equal(f"the farthest word in it, {name}", _find_farthest(field), layers * (k - 1) // 2),
        ]
    recurrent, attention = build_recurrent(), build_attention()
    seen = find_dependencies(attention, words, WIDTH)[words // 2]
    before = find_dependencies(lambda x: recurrent(x, None)[0], FEW_WORDS, WIDTH).sum(1).tolist()
    products = [count_products(lambda x: recurrent(x, None)[0], n) for n in LENGTHS]
    return build_result(
        *compared,
        expect_equal(f"receptive field of one layer of self-attention, of {words} words", int(seen.sum()), words),
        expect_near("self-attention: difference from the formula", _compare_attention(attention), 0, within=1e-12),
        expect_equal("recurrent: words that each state depends on", str(before), str([*range(1, FEW_WORDS + 1)])),
        expect_equal(
            f"recurrent: more sequential products for {LENGTHS[-1] - LENGTHS[0]} more words",
            products[-1] - products[0],
            LENGTHS[-1] - LENGTHS[0],
        ),
    )


def _compare_attention(layer: SelfAttention) -> float:
    """The largest difference of a layer of self-attention from the formula."""
    x = sample_normal(1, 9, WIDTH)
    return max_difference(layer(x)[0], compute_attention(layer, x[0]))


def _find_farthest(field: Tensor) -> int:
    """The largest distance of a position in the receptive field from the middle; 0 if it is empty."""
    return max((abs(int(i) - len(field) // 2) for i in field.nonzero()), default=0)
