"""Checks on the parts of a Transformer block, on stacks of blocks, and on the learning rate."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from saccade.config.load import load
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.norm import LayerNorm
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.references.basics import apply_layer_norm, embed, skip_norm
from saccade.lectures.references.comparing import (
    MODEL_TOLERANCE,
    build_padded_batch,
    build_random_model,
    compare_model,
    measure_layer,
    run_both,
)
from saccade.lectures.references.transformer import Style, compute_attention, compute_feedforward, encode, run_block
from saccade.lectures.small import max_difference, sample_normal
from saccade.model.model import Model
from saccade.train.api import train
from saccade.train.schedule import build_schedule, inverse_sqrt_lr


def build_encoder_block() -> Any:
    """Build the first encoder block of the small `transformer`, with random parameters."""
    return build_random_model().reader.stack.blocks[0]


@check(
    76,
    "S4:114-124",
    "A block is attention and a two-layer network with ReLU, each as LayerNorm(x + sublayer(x)).",
    formula=r"\mathrm{LayerNorm}(x + \mathrm{sublayer}(x)), \quad \mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2",
    code=(Block, Residual, FeedForward),
    breaks=(
        "uniform-attention",
        "residual-dropped",
        "feedforward-without-activation",
        "feedforward-dropped",
        "pre-norm-for-post-norm",
        "norm-dropped",
    ),
)
@torch.no_grad()
def the_block() -> CheckResult:
    block, x = build_encoder_block(), sample_normal(2, 5, 12)
    h = apply_layer_norm(block.residuals[0].norm, x + compute_attention(block.self, x))
    return build_result(
        expect_near(
            "feed-forward network: difference from max(0, x W1 + b1) W2 + b2",
            max_difference(block.feedforward(h), compute_feedforward(block.feedforward, h)),
            0,
            within=1e-12,
        ),
        expect_near(
            "attention: difference from the formula",
            measure_layer(block.self, x),
            0,
            within=1e-12,
        ),
        expect_near(
            "block: difference from the formula", max_difference(block(x)[0], run_block(block, x)), 0, within=1e-12
        ),
        *compare_model(build_random_model(), build_padded_batch()),
    )


@check(
    77,
    "S3:1543-1560",
    "Layer normalisation of a vector: mean and biased variance over its D features, then scale and shift.",
    formula=r"\mu_i = \frac{1}{D} \sum_j h_{i,j}, \quad "
    r"\sigma_i = \sqrt{\frac{1}{D} \sum_j (h_{i,j} - \mu_i)^2}, \quad "
    r"y_i = \gamma \frac{h_i - \mu_i}{\sigma_i} + \beta",
    code=(LayerNorm,),
    breaks=(
        "norm-with-unbiased-variance",
        "norm-without-mean",
        "norm-over-positions",
        "norm-without-scale-and-shift",
        "norm-dropped",
    ),
)
@torch.no_grad()
def layer_norm() -> CheckResult:
    norm, h = build_encoder_block().residuals[0].norm, sample_normal(2, 5, 12) * 3 + 2
    mu = h.sum(-1, keepdim=True) / 12
    spread = ((h - mu) ** 2).sum(-1, keepdim=True)
    by_hand = norm.weight * (h - mu) / (spread / 12 + 1e-5).sqrt() + norm.bias
    unbiased = norm.weight * (h - mu) / (spread / 11 + 1e-5).sqrt() + norm.bias
    flat = norm(torch.full((1, 1, 12), 4.0, dtype=torch.float64))[0, 0]
    small = h * 1e-3  # variances of about 1e-5, as large as ε
    return build_result(
        expect_near(
            "largest difference from the formula, with 1/D and ε inside the root",
            max_difference(norm(h), by_hand),
            0,
            within=1e-12,
        ),
        expect_at_least("difference from the form with 1/(D - 1)", max_difference(norm(h), unbiased), 1e-3),
        expect_near("a constant vector gives β: largest difference", max_difference(flat, norm.bias), 0, within=1e-12),
        expect_near(
            "ε = 1e-5, which the notes leave out: difference from the formula for vectors of variance 1e-5",
            max_difference(norm(small), apply_layer_norm(norm, small)),
            0,
            within=1e-12,
        ),
    )


@check(
    78,
    "S4:132-134",
    "Two steps: each word vector gets mean 0 and variance 1, then an affine map with learned γ and β.",
    formula=r"z = \frac{h - \mu}{\sigma}, \quad y = \gamma z + \beta",
    code=(LayerNorm,),
    breaks=("norm-without-mean", "norm-over-positions", "norm-without-scale-and-shift", "norm-dropped"),
)
def two_steps() -> CheckResult:
    model, batch = build_random_model(), build_padded_batch()
    norm: Any = model.reader.stack.blocks[-1].residuals[-1].norm
    states = model.read(batch).states
    z = ((states - norm.bias) / norm.weight).detach()
    states.square().sum().backward()
    expected = [2 * (states * z).sum((0, 1)), 2 * states.sum((0, 1))]  # of the sum of squares, by γ and β
    gradients = [torch.zeros(12) if p.grad is None else p.grad for p in (norm.weight, norm.bias)]
    return build_result(
        expect_near(
            "largest mean of a word vector after the first step", float(z.mean(-1).abs().max()), 0, within=1e-10
        ),
        expect_near(
            "largest distance of its variance from 1", float((z.var(-1, correction=0) - 1).abs().max()), 0, within=1e-3
        ),
        *(
            expect_near(
                f"{name} is learned, one value a feature: gradient, difference from the formula",
                max_difference(found.double(), wanted),
                0,
                within=1e-9,
            )
            for name, found, wanted in zip("γβ", gradients, expected, strict=True)
        ),
    )


@check(
    80,
    "S3:1655-1658",
    "Post-norm: the normalisation follows the residual sum, so the output of every block is normalised.",
    formula=r"y = \mathrm{LN}(x + f(x))",
    code=(Residual, TransformerStack),
    breaks=(
        "pre-norm-for-post-norm",
        "norm-before-the-sum",
        "residual-dropped",
        "norm-dropped",
        "uniform-attention",
    ),
)
@torch.no_grad()
def post_norm() -> CheckResult:
    model, batch = build_random_model(), build_padded_batch()
    residual = model.reader.stack.blocks[0].residuals[0]
    linear, x = nn.Linear(12, 12).double(), sample_normal(2, 5, 12)
    by_hand = apply_layer_norm(residual.norm, x + linear(x))
    hidden, stream = residual.begin_sublayer(x, None)
    found, _ = residual.end_sublayer(linear(hidden), stream)
    means = []
    for block in model.reader.stack.blocks:
        x = block(x)[0]
        last = block.residuals[-1].norm
        means.append(float(((x - last.bias) / last.weight).mean(-1).abs().max()))
    return build_result(
        expect_near("sublayer: difference from LN(x + f(x))", max_difference(found, by_hand), 0, within=1e-12),
        expect_near("largest mean of an output vector of two blocks, before γ and β", max(means), 0, within=1e-10),
        *compare_model(model, batch),
    )


@check(
    82,
    "S3:1683",
    "A Transformer is a sequence of blocks.",
    formula=r"\mathrm{Transformer} = B_n \circ \dots \circ B_1",
    code=(TransformerStack,),
    breaks=("uniform-attention", "first-block-repeated", "blocks-in-reverse", "one-block-only"),
)
@torch.no_grad()
def a_sequence_of_blocks() -> CheckResult:
    model, batch = build_random_model(["reader.stack.layers=4"]), build_padded_batch()
    source = batch["source"]
    stack, seen = model.reader.stack, []
    for index, block in enumerate(stack.blocks):
        block.self.register_forward_hook(lambda *_, index=index: seen.append(index + 1))
    x = sample_normal(2, 5, 12)
    y, by_hand = x, x
    for block in stack.blocks:
        y, by_hand = block(y)[0], run_block(block, by_hand)
    seen.clear()
    model.read(batch)
    order = str(seen)
    states, explicit = run_both(model, lambda: model.read(batch).states)
    expected = encode(model, source.ids, source.mask)
    return build_result(
        expect_equal("blocks, in the order in which they run", order, "[1, 2, 3, 4]"),
        expect_near(
            "stack: difference from one block after the other", max_difference(stack(x, None)[0], y), 0, within=1e-12
        ),
        expect_near("stack: difference from the formulas", max_difference(y, by_hand), 0, within=1e-12),
        expect_near(
            "encoder of 4 blocks: difference from the formulas",
            max(max_difference(found[source.mask], expected[source.mask]) for found in (states, explicit)),
            0,
            within=MODEL_TOLERANCE,
        ),
    )


@check(
    83,
    "S4:160",
    "The learning rate rises for the warm-up steps and then falls as 1/√step; its peak is at the last warm-up step.",
    formula=r"lr = d^{-0.5} \cdot \min(\mathrm{step}^{-0.5}, \mathrm{step} \cdot \mathrm{warmup}^{-1.5})",
    code=(inverse_sqrt_lr, build_schedule),
    breaks=("warmup-dropped", "learning-rate-stays-at-its-peak", "learning-rate-without-width"),
)
def warm_up() -> CheckResult:
    settings = load("transformer").train
    schedule = build_schedule(settings.schedule, dim=512, total=None)
    steps = range(1, 20001)
    rates = [schedule(step) for step in steps]
    best = max(steps, key=lambda step: rates[step - 1])
    worst = max(
        abs(rate / (512**-0.5 * min(s**-0.5, s * 4000**-1.5)) - 1) for s, rate in zip(steps, rates, strict=True)
    )
    plotted = range(100, 20001, 100)
    caption = "The learning rate of the paper's base model: d = 512, 4,000 steps of warm-up."
    curves = {"d = 512, warmup = 4000": ([float(s) for s in plotted], [rates[s - 1] for s in plotted])}
    return build_result(
        expect_equal("step with the highest rate", best, 4000),
        expect_near("highest rate", max(rates), 6.988e-4, within=5e-8),
        expect_near("recipe transformer, 20,000 steps: relative difference from the formula", worst, 0, within=1e-9),
        expect_near("rate at 1,000 steps over that at 4,000, rising", rates[999] / rates[3999], 0.25, within=1e-9),
        expect_near("rate at 16,000 steps over that at 4,000, falling", rates[15999] / rates[3999], 0.5, within=1e-9),
        expect_near(
            "twice the width: rate over that at width 512",
            build_schedule(settings.schedule, dim=1024, total=None)(100) / rates[99],
            0.5**0.5,
            within=1e-9,
        ),
        expect_equal("step 0 is defined as step 1", schedule(0), rates[0]),
        _compare_training_rates(),
        drawing=Lines("step", "learning rate", curves, caption),
    )


def _compare_training_rates() -> Comparison:
    """Train a tiny Transformer for 6 steps, and compare the rates that its optimizer used with the formula."""
    sizes = [f"{part}.stack.{size}" for part in ("reader", "writer") for size in ("layers=1", "dim=16", "ff=16")]
    data = ["data.train=[{files=['embedded:copy'], examples=50}]", "data.valid=[{files=['embedded:copy'], examples=2}]"]
    times = ["train.device=cpu", "train.steps=6", "train.schedule.warmup_steps=3", "train.schedule.lr=0.5"]
    used: list[float] = []
    hook = register_optimizer_step_pre_hook(lambda one, *_: used.append(float(one.param_groups[0]["lr"])))
    silent = io.StringIO()
    try:
        with TemporaryDirectory() as folder, redirect_stdout(silent), redirect_stderr(silent):
            train("transformer", overrides=[*sizes, *data, *times], tiny=True, run=Path(folder) / "run")
    finally:
        hook.remove()
    expected = torch.tensor([0.5 * 16**-0.5 * min(step**-0.5, step * 3**-1.5) for step in range(1, 7)])
    found = torch.tensor(used)
    what = "a training of 6 steps, warm-up 3, width 16, factor 0.5: rates of the optimizer, difference from the formula"
    return expect_near(what, max_difference(found, expected), 0, within=1e-7)


@check(
    112,
    "S1:152-163",
    "Self-attention is almost a Transformer: feed-forward, residuals, normalisation and positions are missing.",
    formula=r"\mathrm{feed-forward}, \quad x + \mathrm{sublayer}(x), \quad \mathrm{LN}, \quad p_i",
    code=(Block, Residual),
    breaks=(
        "uniform-attention",
        "residual-dropped",
        "residual-always-added",
        "positions-always-added",
        "positions-dropped",
        "feedforward-dropped",
        "norm-dropped",
    ),
)
@torch.no_grad()
def almost_a_transformer() -> CheckResult:
    """Remove each component alone, as the rungs of the ladder do."""
    wanted = {
        "a Transformer of 2 + 2 layers (input: is it kept when all sublayers output 0?)": (
            [],
            "4 networks, 10 norms, input kept, positions",
        ),
        "without feed-forward": (["stack.ff=0"], "0 networks, 6 norms, input kept, positions"),
        "without residual": (["stack.residual=false"], "4 networks, 10 norms, input lost, positions"),
        "without normalisation": (["stack.norm=none"], "4 networks, 0 norms, input kept, positions"),
        "without positions": (["positions.kind=none"], "4 networks, 10 norms, input kept, no positions"),
    }
    compared: list[Comparison] = []
    for name, (changes, expected) in wanted.items():
        model = build_random_model([f"{side}.{change}" for side in ("reader", "writer") for change in changes])
        compared.append(_compare_encoder(name, model))
        compared.append(expect_equal(name, _describe_parts(model), expected))
    return build_result(*compared)


def _compare_encoder(name: str, model: Model) -> Comparison:
    """Compare the encoder with the formulas, which leave out what the model leaves out."""
    source = build_padded_batch()["source"]
    where = torch.zeros(1).double() if "without positions" in name else None
    x = embed(model.reader.embedding, source.ids, positions=where)
    norm = skip_norm if "without normalisation" in name else apply_layer_norm
    style = Style(norm=norm, residual="without residual" not in name)
    by_hand = encode(model, source.ids, source.mask, style, x=x)
    states = run_both(model, lambda: model.reader(source.ids, source.mask).states)
    difference = max(max_difference(found[source.mask], by_hand[source.mask]) for found in states)
    scale = max(1.0, float(by_hand.abs().max()))  # states grow without norms
    return expect_near(f"{name}: encoder, difference from the formulas", difference / scale, 0, within=MODEL_TOLERANCE)


def _describe_parts(model: Model) -> str:
    """Count networks and norms; find out whether inputs survive sublayers that output 0, and whether order counts."""
    networks, norms = (sum(isinstance(m, kind) for m in model.modules()) for kind in (FeedForward, nn.LayerNorm))
    ids, stack = torch.tensor([[5, 5, 5]]), model.reader.stack
    first, second, _ = model.reader.embedding(ids)[0]
    placed = "positions" if max_difference(first, second) > 1e-6 else "no positions"
    for sublayer in (m for m in stack.modules() if isinstance(m, SelfAttention | FeedForward)):
        for parameter in sublayer.parameters():
            parameter.zero_()
    one, other = (stack(x, None)[0] for x in (sample_normal(1, 4, 12), sample_normal(1, 4, 12)))
    survives = "kept" if max_difference(one, other) > 1e-6 else "lost"
    return f"{networks} networks, {norms} norms, input {survives}, {placed}"
