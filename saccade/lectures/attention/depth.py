"""Rows about depth: where the normalisation stands decides whether many layers learn."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import TransformerStack
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, near
from saccade.lectures.drawing import Lines
from saccade.lectures.small import apart, numbers, stack

LAYERS, STEPS = 24, 150
SYMBOLS, LENGTH, WIDTH = 8, 8, 32


@check(
    81,
    "S3:1662-1666",
    "Pre-norm, inside the residual, is more stable: 24 layers learn without warm-up, with post-norm they do not.",
    formula=r"y = x + f(\mathrm{LN}(x))",
    code=(Residual, TransformerStack),
    trains=True,
)
def pre_norm() -> Measured:
    residual, linear, x = (
        Residual(nn.LayerNorm(6), order="pre", dropout=0.0).double(),
        nn.Linear(6, 6).double(),
        numbers(2, 5, 6),
    )
    hidden, stream = residual.before(x, None)
    hidden, stream = residual.after(linear(hidden), stream)
    assert stream is not None
    found = stream + hidden
    losses = {name: losses_of(name) for name in ("pre", "post")}
    ends = {name: sum(values[-10:]) / 10 for name, values in losses.items()}
    steps = [float(step) for step in range(1, len(losses["pre"]) + 1)]
    caption = f"Loss of {LAYERS} layers that learn to repeat their input, at a constant learning rate of 0.001."
    return measured(
        near("sublayer against x + f(LN(x))", apart(found, x + linear(residual.norm(x))), 0, within=1e-12),
        at_most(f"pre-norm, {LAYERS} layers: loss after {STEPS} steps", ends["pre"], 0.3),
        at_least(
            f"post-norm, {LAYERS} layers: the same; guessing gives log 8 = {math.log(SYMBOLS):.2f}", ends["post"], 1.6
        ),
        drawing=Lines("step", "loss", {f"{name}-norm": (steps, values) for name, values in losses.items()}, caption),
    )


def losses_of(norm: str) -> list[float]:
    """The loss of each step of a deep stack that repeats symbols; no warm-up."""
    torch.manual_seed(81)
    tokens, deep, output = (
        nn.Embedding(SYMBOLS, WIDTH),
        stack(WIDTH, layers=LAYERS, norm=norm).float(),
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
