"""Checks on convolutional translation systems: the recipes convs2s and bytenet compute the formulas of their papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from saccade.layers.blocks.convolution import ConvS2SAttention, GatedBlock, ResidualBlock
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_layer_norm, apply_linear, compute_softmax, relu
from saccade.lectures.references.comparing import compare_gradients
from saccade.lectures.small import max_difference, randomize_parameters, sample_normal
from saccade.lectures.systems.systems import build_system
from saccade.model.model import Model

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 0, 0, 0]])  # 0 is padding
TARGET = torch.tensor([[1, 12, 13, 14, 15, 16], [1, 17, 18, 19, 20, 21]])  # begins with [START]
LENGTHS = (7, 4)
NARROW = ("reader.stack.hidden_dim=10", "writer.stack.hidden_dim=10")
ROUNDING = 1e-5  # models compute sqrt(m) of section 3.4 in float32


def decode(net: Model) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of all target words from one pass and from one step for each word, and the number of encoder states."""
    memory = net.reader(SOURCE, SOURCE > 0)
    at_once = net.writer.head(net.writer(TARGET, torch.ones_like(TARGET, dtype=torch.bool), memory))
    state, steps = net.writer.start(memory, capacity=TARGET.shape[1]), []
    for t in range(TARGET.shape[1]):
        step = net.writer.step(TARGET[:, t : t + 1], state)
        state = step.state
        steps.append(step.logits)
    return at_once, torch.stack(steps, 1), memory.padding.sum(1)


def compare_with(net: Model, formula: Callable[[Any, Tensor, Tensor], Tensor], name: str) -> list[Comparison]:
    """Compare the logits of a system, for sources of two lengths in one padded batch, with the formula of each."""
    at_once, stepwise, _ = decode(net)
    rows = zip(SOURCE, TARGET, LENGTHS, strict=True)
    expected = torch.stack([formula(net, source[:length], target) for source, target, length in rows])
    what, difference = f"{name}: difference of the logits from the formulas", max_difference(at_once, expected)
    return [
        expect_near(what, difference, 0, within=ROUNDING),
        expect_near(f"{what}, word by word", max_difference(stepwise, expected), 0, within=ROUNDING),
        compare_gradients(name, net, at_once, expected, within=10 * ROUNDING),
    ]


def gather_window(x: Tensor, kernel: int, *, dilation: int = 1, causal: bool) -> Tensor:
    """Concatenate k positions of x (T, D) for each one, `dilation` apart: around it, or causal the last of them it."""
    zeros, reach = torch.zeros_like(x[0]), (kernel - 1) * dilation
    first = -reach if causal else -(reach // 2)
    return torch.stack(
        [
            torch.cat([x[j] if 0 <= j < len(x) else zeros for j in range(t + first, t + first + reach + 1, dilation)])
            for t in range(len(x))
        ]
    )


def embed(part: Any, ids: Tensor) -> Tensor:
    """Token vectors, and learned positions from 0 on where there are any."""
    x: Tensor = part.embedding.tokens.weight[ids]
    return x if part.embedding.positions is None else x + part.embedding.positions.table.weight[: len(ids)]


# ---- ConvS2S


def apply_weight_norm(layer: Any, x: Tensor) -> Tensor:
    """W x + b with W = g v / |v| for each output (Salimans and Kingma 2016)."""
    length = layer.weight.square().sum(1, keepdim=True).sqrt()
    return x @ (layer.weight / length * layer.length[:, None]).T + layer.bias


def add_scaled(x: Tensor, y: Tensor) -> Tensor:
    """(x + y) sqrt(0.5), which keeps the variance."""
    return (x + y) * math.sqrt(0.5)


def compute_convs2s(net: Any, source: Tensor, target: Tensor) -> Tensor:
    """The logits of ConvS2S for one sentence pair (Gehring et al. 2017, sections 3.1 to 3.4)."""
    e, g = embed(net.reader, source), embed(net.writer, target)
    z = apply_weight_norm(net.reader.stack.ends[0], e)
    for block in net.reader.stack.blocks:
        z = add_scaled(apply_gate(block, z, causal=False), z)
    z = apply_weight_norm(net.reader.stack.ends[1], z)
    h = apply_weight_norm(net.writer.stack.ends[0], g)
    for block in net.writer.stack.blocks:
        y = apply_gate(block, h, causal=True)
        d = add_scaled(apply_weight_norm(block.cross.query, y), g)
        c = compute_softmax(d @ z.T) @ add_scaled(z, e) * math.sqrt(len(source))
        h = add_scaled(add_scaled(apply_weight_norm(block.cross.out, c), y), h)
    return apply_linear(net.writer.output, apply_weight_norm(net.writer.stack.ends[1], h))


def apply_gate(block: Any, x: Tensor, *, causal: bool) -> Tensor:
    """[A; B] = W [x_(i-k+1) ... x_i] + b, then A sigmoid(B): the gated linear unit."""
    a, b = apply_weight_norm(block.convolution, gather_window(x, block.kernel, causal=causal)).chunk(2, -1)
    return a / (1 + torch.exp(-b))


@check(
    11,
    "S1:64-70, S3:1460-1474",
    "Convolutional models: each layer sees a window, many layers see far, and decoder layers never look ahead.",
    formula=r"\mathrm{field} = 1 + L (k - 1)",
    code=(ConvolutionStack, GatedBlock, ConvS2SAttention),
    recipes=("bytenet", "convs2s"),
    breaks=(
        "open-gates",
        "convolution-without-attention",
        "unscaled-convolution-residuals",
        "convolution-looks-ahead",
        "convolution-reads-padding",
        "uniform-attention",
        "attention-without-gradient",
    ),
)
def convolution_style() -> CheckResult:
    compared = []
    for layers in (1, 2, 4):
        net = build_system("convs2s", [*NARROW, f"reader.stack.layers={layers}"])
        name = f"receptive field of the middle word, {layers} layers of k = 3"
        compared.append(expect_equal(name, len(find_field(net.reader.stack, 21, at=10)), 1 + 2 * layers))
    net = build_system("convs2s", [*NARROW, "writer.stack.layers=2"])
    randomize_parameters(net)
    seen = find_field(net.writer.stack, 13, at=8)
    compared.append(expect_equal("decoder: what word 9 sees, 2 layers of k = 3", str(seen), "[4, 5, 6, 7, 8]"))
    return build_result(*compared, *compare_with(net, compute_convs2s, "ConvS2S"))


def find_field(stack: ConvolutionStack, length: int, *, at: int) -> list[int]:
    """The inputs that the output at position `at` depends on, by its gradient for 32 random sequences."""
    x = sample_normal(32, length, 12).requires_grad_()
    (grad,) = torch.autograd.grad(stack(x, None)[0][:, at].square().sum(), x)
    return grad.abs().sum((0, 2)).nonzero()[:, 0].tolist()


# ---- ByteNet


def compute_bytenet(net: Any, source: Tensor, target: Tensor) -> Tensor:
    """The logits of ByteNet for one sentence pair (Kalchbrenner et al. 2016, section 3)."""
    e, g = (embed(part, ids) * math.sqrt(12) for part, ids in ((net.reader, source), (net.writer, target)))
    unfolded = torch.cat((e, e.new_zeros(math.ceil(1.2 * len(source) + 2 - 1e-6) - len(source), 12)))
    states = run_dilated_blocks(net.reader.stack, unfolded, causal=False)
    padded = torch.cat((states, states.new_zeros(len(target), 12)))[: len(target)]
    return apply_linear(net.writer.output, run_dilated_blocks(net.writer.stack, g + padded, causal=True))


def run_dilated_blocks(layers: Any, x: Tensor, *, causal: bool) -> Tensor:
    """x + W_3 f(conv(f(W_1 f(x)))) for dilations 1, 2, 4, 8, 16 and again, then a norm; f = ReLU of a layer norm."""
    for number, block in enumerate(layers.blocks):
        y = apply_linear(block.narrow, relu(apply_layer_norm(block.norms[0], x)))
        y = relu(apply_layer_norm(block.norms[1], y))
        y = gather_window(y, 3 if causal else 5, dilation=2 ** (number % 5), causal=causal)
        x = x + apply_linear(block.widen, relu(apply_layer_norm(block.norms[2], apply_linear(block.convolution, y))))
    return apply_layer_norm(layers.norm, x)


@check(
    115,
    "S4:226",
    "ByteNet: dilated convolutions, masked in the decoder, which stands on the encoder's states word by word.",
    formula=r"\mathrm{field} = 1 + (k - 1) \sum_l d_l, \quad |h| = a |s| + b",
    code=(ConvolutionStack, ResidualBlock),
    recipes=("bytenet",),
    breaks=(
        "undilated-convolutions",
        "convolution-looks-ahead",
        "convolution-reads-padding",
        "no-dynamic-unfolding",
        "decoder-not-on-encoder",
        "no-residual-convolutions",
    ),
)
def bytenet() -> CheckResult:
    net = build_system("bytenet", ["reader.stack.layers=5", "writer.stack.layers=6"])
    randomize_parameters(net)
    dilations = [block.dilation for block in net.writer.stack.blocks]
    seen = find_field(net.writer.stack, 90, at=80)
    around = find_field(net.reader.stack, 151, at=75)
    states = decode(net)[2].tolist()
    lengths = "first and last position that the decoder sees, 6 layers of k = 3"
    return build_result(
        expect_equal("dilations of 6 layers", str(dilations), "[1, 2, 4, 8, 16, 1]"),
        expect_equal(f"{lengths}, at position 80", f"{seen[0]}, {seen[-1]}", f"{80 - 2 * 32}, 80"),
        expect_equal("positions that the decoder sees", len(seen), 1 + 2 * 32),
        expect_equal("positions that the encoder sees, 5 layers of k = 5", len(around), 1 + 4 * 31),
        expect_equal("encoder states for 7 and 4 words, 1.2 |s| + 2", str(states), "[11, 7]"),
        *compare_with(net, compute_bytenet, "ByteNet"),
        *_find_where_the_source_enters(net),
    )


@torch.no_grad()
def _find_where_the_source_enters(net: Model) -> list[Comparison]:
    """Change the last source word: what the decoder writes before its window of the encoder must not change."""
    ones, changed = torch.ones(1, 70, dtype=torch.bool), torch.randint(4, 23, (1, 70))
    changed[:, -1] = 5
    other = changed.clone()
    other[:, -1] = 6
    target = torch.randint(4, 23, (1, 70))
    first, second = (net.writer(target, ones, net.reader(ids, ones)) for ids in (changed, other))
    moved = (first - second)[0].abs().amax(-1) > 1e-12
    return [
        expect_equal(
            "words that change before the window of the last of 70 source words", int(moved[: 69 - 62].sum()), 0
        ),
        expect_at_least("words that change with it", int(moved.sum()), 1),
    ]
