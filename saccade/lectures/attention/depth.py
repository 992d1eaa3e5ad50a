"""Checks on depth: pre-norm trains many layers without warm-up, post-norm does not."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from saccade.config.load import load
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import TransformerStack
from saccade.lectures.claims import CheckResult, Comparison, build_result, check, expect_at_least, expect_at_most
from saccade.lectures.drawing import Lines
from saccade.lectures.references.basics import apply_linear, gelu_tanh
from saccade.lectures.references.transformer import Style, decode_text
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.runs import METRICS
from saccade.train.api import train

LAYERS, STEPS, REPORT_EVERY = 24, 100, 5
LETTERS, PERIOD, LENGTH = "abcdefgh", 3, 12  # a text is a random word of three letters, four times
DOCUMENTS = 4_000


@check(
    81,
    "S3:1662-1666",
    "Pre-norm (inside the residual) is more stable: 24 layers train without warm-up, which fails with post-norm.",
    formula=r"y = x + f(\mathrm{LN}(x))",
    code=(Residual, TransformerStack),
    trains=True,
    breaks=("uniform-attention", "pre-norm-ignored", "post-norm-ignored", "no-residual", "norm-skipped"),
)
def pre_norm() -> CheckResult:
    losses = {norm: train_deep_model(norm) for norm in ("pre", "post")}
    steps = [float(step) for step in range(REPORT_EVERY, STEPS + 1, REPORT_EVERY)]
    caption = (
        f"Training loss of a language model of {LAYERS} layers on words of {PERIOD} letters that are repeated, at a "
        "constant learning rate of 0.002 without warm-up."
    )
    return build_result(
        *(compare_outputs(norm) for norm in ("pre", "post")),
        expect_at_most(f"pre-norm, {LAYERS} layers: loss after {STEPS} steps", losses["pre"][-1], 0.8),
        expect_at_least(f"post-norm, {LAYERS} layers: loss after {STEPS} steps", losses["post"][-1], 1.9),
        drawing=Lines("step", "loss", {f"{name}-norm": (steps, values) for name, values in losses.items()}, caption),
        note="Letters of the first repetition are random, so that no model reaches a loss below 0.48.",
    )


def compare_outputs(norm: str) -> Comparison:
    """Compare a small model with the formulas x + f(LN(x)) and LN(x + f(x)), written out."""
    sizes = [f"writer.stack.{item}" for item in ("layers=3", "dim=12", "heads=3", "ff=20", f"norm={norm}")]
    model = build(load("gpt2", tiny=True, overrides=sizes), source_size=23, target_size=23).double().eval()
    randomize_parameters(model)
    ids = torch.randint(4, 23, (2, 7))
    style = Style(activation=gelu_tanh, pre_norm=norm == "pre")
    found = model.writer.head(model.writer(ids, torch.ones_like(ids, dtype=torch.bool), None))
    difference = max_difference(found, apply_linear(model.writer.output, decode_text(model.writer, ids, style)))
    formula = "x + f(LN(x))" if norm == "pre" else "LN(x + f(x))"
    return expect_at_most(f"{norm}-norm, three layers: largest difference from {formula} written out", difference, 1e-9)


def train_deep_model(norm: str) -> Sequence[float]:
    """Train a deep GPT-2 on repeated words, without warm-up; return the loss of every few steps."""
    rng = random.Random(81)
    sizes = (f"layers={LAYERS}", "dim=32", "heads=2", "ff=64", f"norm={norm}", "dropout=0.0")
    changes = [
        *(f"writer.stack.{item}" for item in sizes), "writer.positions.length=16", "data.max_length=16",
        "data.cross_document=false", "data.documents=lines", "data.valid=[]", "train.device=cpu",
        "train.batch_tokens=512", "train.schedule={kind='constant', lr=0.002}", "train.valid_predictions=0",
        *(f"train.{key}={STEPS}" for key in ("steps", "valid_every", "save_every")),
        f"train.report_every={REPORT_EVERY}",
    ]  # fmt: skip
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        file, run = Path(folder, "texts.txt"), Path(folder, "run")
        words = ("".join(rng.choices(LETTERS, k=PERIOD)) for _ in range(DOCUMENTS))
        file.write_text("".join(f"{word * (LENGTH // PERIOD)}\n" for word in words), encoding="utf-8")
        train("gpt2", tiny=True, data=str(file), run=run, overrides=changes)
        lines = map(json.loads, (run / METRICS).read_text("utf-8").splitlines())
        return [float(line["loss"]) for line in lines if line["event"] == "train"]
