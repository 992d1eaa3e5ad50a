"""Checks on the Transformer block: sublayers, residuals, normalisation, learning rate, parts of a whole model."""

from __future__ import annotations

import torch
from torch import nn

from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.drawing import Lines
from saccade.lectures.small import (
    build_block,
    build_small_model,
    build_stack,
    max_difference,
    sample_normal,
)
from saccade.model.build.transformer import build_norm
from saccade.train.schedule import inverse_sqrt_lr


@check(
    76,
    "S4:114-124",
    "A block is attention and a two-layer network with ReLU, each as LayerNorm(x + sublayer(x)).",
    formula=r"\mathrm{LayerNorm}(x + \mathrm{sublayer}(x)), \quad \mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2",
    code=(Block, Residual, FeedForward),
)
def the_block() -> CheckResult:
    layer, x = build_block(6), sample_normal(2, 5, 6)
    network: FeedForward = layer.feedforward  # type: ignore[assignment]
    first, second = (residual.norm for residual in layer.residuals)
    h = first(x + layer.self(x))
    ffn = torch.clamp(h @ network.up.weight.T + network.up.bias, min=0) @ network.down.weight.T + network.down.bias
    return build_result(
        expect_near(
            "feed-forward network: difference from max(0, x W1 + b1) W2 + b2",
            max_difference(network(h), ffn),
            0,
            within=1e-12,
        ),
        expect_near(
            "block: difference from the formula", max_difference(layer(x)[0], second(h + ffn)), 0, within=1e-12
        ),
    )


@check(
    77,
    "S3:1543-1560",
    "Layer normalisation of a vector: mean and biased variance over its D features, then scale and shift.",
    formula=r"\mu_i = \frac{1}{D} \sum_j h_{i,j}, \quad "
    r"\sigma_i = \sqrt{\frac{1}{D} \sum_j (h_{i,j} - \mu_i)^2}, \quad "
    r"y_i = \gamma \frac{h_i - \mu_i}{\sigma_i} + \beta",
    code=(build_norm,),
)
def layer_norm() -> CheckResult:
    norm, h = _build_random_norm(7), sample_normal(5, 7) * 3 + 2
    mu = h.sum(1, keepdim=True) / 7
    spread = ((h - mu) ** 2).sum(1, keepdim=True)
    by_hand = norm.weight * (h - mu) / (spread / 7 + norm.eps).sqrt() + norm.bias
    unbiased = norm.weight * (h - mu) / (spread / 6 + norm.eps).sqrt() + norm.bias
    flat = norm(torch.full((1, 7), 4.0, dtype=torch.float64))[0]
    return build_result(
        expect_near(
            "largest difference from the formula, with 1/D and ε inside the root",
            max_difference(norm(h), by_hand),
            0,
            within=1e-12,
        ),
        expect_at_least("difference from the form with 1/(D - 1)", max_difference(norm(h), unbiased), 1e-3),
        expect_near("a constant vector gives β: largest difference", max_difference(flat, norm.bias), 0, within=1e-12),
        expect_equal("ε, which the notes leave out and PyTorch adds", norm.eps, 1e-5),
    )


def _build_random_norm(width: int) -> nn.LayerNorm:
    """Build the layer normalisation of a recipe, with random γ and β."""
    from saccade.config.schema import TransformerStack as Settings

    norm = build_norm(Settings(dim=width, heads=1)).double()
    assert isinstance(norm, nn.LayerNorm)
    with torch.no_grad():
        norm.weight.copy_(sample_normal(width))
        norm.bias.copy_(sample_normal(width))
    return norm


@check(
    78,
    "S4:132-134",
    "Two steps: each word vector gets mean 0 and variance 1, then an affine map with learned γ and β.",
    formula=r"z = \frac{h - \mu}{\sigma}, \quad y = \gamma z + \beta",
    code=(build_norm,),
)
def two_steps() -> CheckResult:
    norm, h = _build_random_norm(64), sample_normal(5, 64) * 3 + 2
    z = ((norm(h) - norm.bias) / norm.weight).detach()
    learned = {name: tuple(p.shape) for name, p in norm.named_parameters()}
    return build_result(
        expect_near(
            "largest mean of a word vector after the first step", float(z.mean(1).abs().max()), 0, within=1e-10
        ),
        expect_near(
            "largest distance of its variance from 1", float((z.var(1, correction=0) - 1).abs().max()), 0, within=1e-4
        ),
        expect_equal("γ and β, one value for each feature", str(learned), "{'weight': (64,), 'bias': (64,)}"),
    )


@check(
    80,
    "S3:1655-1658",
    "Post-norm: the normalisation follows the residual sum, so the output of every block is normalised.",
    formula=r"y = \mathrm{LN}(x + f(x))",
    code=(Residual,),
)
def post_norm() -> CheckResult:
    residual = Residual(nn.LayerNorm(6), order="post", dropout=0.0).double()
    linear, x = nn.Linear(6, 6).double(), sample_normal(2, 5, 6)
    by_hand = residual.norm(x + linear(x))
    hidden, stream = residual.begin_sublayer(x, None)
    found, _ = residual.end_sublayer(linear(hidden), stream)
    outputs = build_stack(6, layers=3)(x, None)[0].detach()
    return build_result(
        expect_near("sublayer: difference from LN(x + f(x))", max_difference(found, by_hand), 0, within=1e-12),
        expect_near(
            "largest mean of an output vector of three blocks", float(outputs.mean(-1).abs().max()), 0, within=1e-10
        ),
    )


@check(
    82,
    "S3:1683",
    "A Transformer is a sequence of blocks.",
    formula=r"\mathrm{Transformer} = B_n \circ \dots \circ B_1",
    code=(TransformerStack,),
)
def a_sequence_of_blocks() -> CheckResult:
    deep, x = build_stack(6, layers=4), sample_normal(1, 5, 6)
    y = x
    for layer in deep.blocks:
        y = layer(y)[0]
    return build_result(
        expect_equal("blocks", len(deep.blocks), 4),
        expect_near(
            "stack: difference from one block after the other", max_difference(deep(x, None)[0], y), 0, within=1e-12
        ),
    )


@check(
    83,
    "S4:160",
    "The learning rate rises for the warm-up steps and then falls as 1/√step; its peak is at the last warm-up step.",
    formula=r"lr = d^{-0.5} \cdot \min(\mathrm{step}^{-0.5}, \mathrm{step} \cdot \mathrm{warmup}^{-1.5})",
    code=(inverse_sqrt_lr,),
)
def warm_up() -> CheckResult:
    steps = range(1, 20001)
    rates = [inverse_sqrt_lr(step, lr=1.0, dim=512, steps=4000) for step in steps]
    best = max(steps, key=lambda step: rates[step - 1])
    plotted = range(100, 20001, 100)
    caption = "The learning rate of the paper's base model: d = 512, 4,000 steps of warm-up."
    curves = {"d = 512, warmup = 4000": ([float(s) for s in plotted], [rates[s - 1] for s in plotted])}
    return build_result(
        expect_equal("step with the highest rate", best, 4000),
        expect_near("highest rate", max(rates), 6.988e-4, within=5e-8),
        expect_near("rate at 16,000 steps over that at 4,000", rates[15999] / rates[3999], 0.5, within=1e-9),
        expect_equal("step 0 is defined as step 1", inverse_sqrt_lr(0, lr=1.0, dim=512, steps=4000), rates[0]),
        drawing=Lines("step", "learning rate", curves, caption),
    )


@check(
    112,
    "S1:152-163",
    "This is almost a Transformer: feed-forward, residuals, normalisation and positions are missing.",
    formula=r"\mathrm{feed-forward}, \quad x + \mathrm{sublayer}(x), \quad \mathrm{LN}, \quad p_i",
    code=(Block, Residual),
)
@torch.no_grad()
def almost_a_transformer() -> CheckResult:
    """Remove each component alone, as the rungs of the ladder do."""

    def parts(*changes: str) -> str:
        settings = [f"{side}.{change}" for side in ("reader", "writer") for change in changes]
        model = build_small_model(settings)
        networks, norms = (sum(isinstance(m, kind) for m in model.modules()) for kind in (FeedForward, nn.LayerNorm))
        layers = model.reader.stack
        for sublayer in (m for m in layers.modules() if isinstance(m, SelfAttention | FeedForward)):
            for parameter in sublayer.parameters():
                parameter.zero_()
        survives = "kept" if float(layers(sample_normal(1, 4, 12), None)[0].abs().max()) > 0 else "lost"
        placed = "positions" if model.reader.embedding.positions is not None else "no positions"
        return f"{networks} networks, {norms} norms, input {survives}, {placed}"

    return build_result(
        expect_equal(
            "a Transformer of 2 + 2 layers (input: is it kept when all sublayers output 0?)",
            parts(),
            "4 networks, 10 norms, input kept, positions",
        ),
        expect_equal("without feed-forward", parts("stack.ff=0"), "0 networks, 6 norms, input kept, positions"),
        expect_equal("without residual", parts("stack.residual=false"), "4 networks, 10 norms, input lost, positions"),
        expect_equal("without normalisation", parts("stack.norm=none"), "4 networks, 0 norms, input kept, positions"),
        expect_equal(
            "without positions", parts("positions.kind=none"), "4 networks, 10 norms, input kept, no positions"
        ),
    )
