"""Checks on depth: pre-norm trains many layers without warm-up, post-norm does not."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import TransformerStack
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most, expect_near
from saccade.lectures.drawing import Lines
from saccade.lectures.small import build_stack, max_difference, sample_normal

LAYERS, STEPS = 24, 150
SYMBOLS, LENGTH, WIDTH = 8, 8, 32


@check(
    81,
    "S3:1662-1666",
    "Pre-norm (inside the residual) is more stable: 24 layers train without warm-up, which fails with post-norm.",
    formula=r"y = x + f(\mathrm{LN}(x))",
    code=(Residual, TransformerStack),
    trains=True,
)
def pre_norm() -> CheckResult:
    residual, linear, x = (
        Residual(nn.LayerNorm(6), order="pre", dropout=0.0).double(),
        nn.Linear(6, 6).double(),
        sample_normal(2, 5, 6),
    )
    hidden, stream = residual.begin_sublayer(x, None)
    hidden, stream = residual.end_sublayer(linear(hidden), stream)
    assert stream is not None
    found = stream + hidden
    losses = {name: train_deep_stack(name) for name in ("pre", "post")}
    ends = {name: sum(values[-10:]) / 10 for name, values in losses.items()}
    steps = [float(step) for step in range(1, len(losses["pre"]) + 1)]
    caption = f"Training loss of {LAYERS} layers that learn to copy their input, at a constant learning rate of 0.001."
    return build_result(
        expect_near(
            "sublayer: difference from x + f(LN(x))",
            max_difference(found, x + linear(residual.norm(x))),
            0,
            within=1e-12,
        ),
        expect_at_most(f"pre-norm, {LAYERS} layers: loss after {STEPS} steps", ends["pre"], 0.3),
        expect_at_least(
            f"post-norm, {LAYERS} layers: loss after {STEPS} steps; guessing gives log 8 = {math.log(SYMBOLS):.2f}",
            ends["post"],
            1.6,
        ),
        drawing=Lines("step", "loss", {f"{name}-norm": (steps, values) for name, values in losses.items()}, caption),
    )


def train_deep_stack(norm: str) -> list[float]:
    """Train a deep stack to copy symbols, without warm-up; return the loss of each step."""
    torch.manual_seed(81)
    tokens, deep, output = (
        nn.Embedding(SYMBOLS, WIDTH),
        build_stack(WIDTH, layers=LAYERS, norm=norm).float(),
        nn.Linear(WIDTH, SYMBOLS),
    )
    optimizer = torch.optim.Adam([p for part in (tokens, deep, output) for p in part.parameters()], lr=1e-3)
    losses = []
    for _ in range(STEPS):
        x = torch.randint(SYMBOLS, (32, LENGTH))
        loss = F.cross_entropy(output(deep(tokens(x), None)[0]).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
