"""Checks on the decoder with attention (Bahdanau et al. 2015): its step, its gradient, the encoder states it uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END
from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.attention.scores import Additive, attend
from saccade.layers.blocks.recurrence import BahdanauRecurrence, bahdanau_step
from saccade.layers.blocks.recurrent import CellName
from saccade.layers.record import record
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.references.basics import apply_linear, embed_tokens
from saccade.lectures.references.recurrent import Step, read, write_with_attention
from saccade.lectures.small import max_difference
from saccade.lectures.systems.recurrent_models import (
    BATCH,
    INPUTS,
    SOURCES,
    build_random,
    compare_rows,
    write_at_once,
    write_stepwise,
)
from saccade.model.model import Model
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.optimizer import build_optimizer

TARGETS = [[*ids[1:], END] for ids in INPUTS]
MIN_GRADIENT = 1e-9  # norm
CELLS: tuple[CellName, ...] = ("gru", "rnn", "lstm")  # the recipe has GRUs


def write_by_formula(model: Model, row: int, states: Tensor | None = None, *, cell: CellName = "gru") -> Step:
    """Decode a row of the batch by the formulas, with its own encoder states or with others; outputs are logits."""
    encoding = read(model, SOURCES[row], cell="gru", direction="both")
    h = encoding.states if states is None else states
    x = embed_tokens(model.writer.embedding, torch.tensor([INPUTS[row]]))
    found = write_with_attention(cell, model.writer.stack, x, h[None], summary=encoding.final[-1][0][None])
    found = found._replace(outputs=apply_linear(model.writer.output, found.outputs))
    return Step(*(part[0] for part in found))


@check(
    17,
    "S3:140,156",
    "With attention, s_t is computed from y_(t-1), s_(t-1) and the context c_t, whose query is s_(t-1).",
    formula=r"s_t = g_U(y_{t-1}, s_{t-1}, c_t), \quad e_{t,i} = f_{att}(s_{t-1}, h_i)",
    code=(BahdanauRecurrence, bahdanau_step.function),
    breaks=("uniform-attention", "query-after-the-step", "context-not-fed-back", "score-ignores-the-query",
            "gru-without-reset", "unmasked-attention", "attention-off-by-one", "decoder-forgets-its-state"),
)  # fmt: skip
@torch.no_grad()
def context_of_each_step() -> CheckResult:
    compared = []
    for cell in CELLS:
        model = build_random("bahdanau", [f"writer.stack.cell={cell}"])
        memory = model.read(BATCH)
        expected = [write_by_formula(model, row, cell=cell) for row in range(len(SOURCES))]
        logits, weights = write_stepwise(model, memory, attends=True)
        with record(model) as maps:
            whole = write_at_once(model, memory)
        [recorded] = maps.values()
        start = model.writer.start(memory, capacity=1)
        first = [model.writer.step(torch.tensor([[word]] * 2), start, align=True).weights for word in (12, 13)]
        near = {
            "logits: difference from the formula": _compare(whole, expected, "outputs"),
            "the same, computed step by step: difference": _compare(logits, expected, "outputs"),
            "attention weights: difference from the formula": _compare(recorded[:, 0], expected, "weights"),
            "the same, step by step: difference": _compare(weights, expected, "weights"),
        }
        padding, changes = weights[1, :, len(SOURCES[1]) :], (weights[0, 1:] - weights[0, :-1]).abs().amax(-1)
        compared += [
            *(expect_near(f"{cell}, {name}", value, 0, within=1e-10) for name, value in near.items()),
            expect_equal(f"{cell}, largest attention weight of padding", float(padding.max()), 0.0),
            expect_equal(
                f"{cell}, first attention weights for two different words: difference", max_difference(*first), 0.0
            ),
            expect_at_least(
                f"{cell}, smallest change of the weights from one step to the next", float(changes.min()), 1e-6
            ),
        ]
    return build_result(*compared)


def _compare(found: Tensor, expected: list[Step], name: str) -> float:
    return compare_rows(found, [getattr(one, name) for one in expected])


@check(
    20,
    "S3:159",
    "The gradient of the loss reaches and updates all parameters, including those of attention.",
    formula=r"\frac{\partial L}{\partial \theta} \quad \text{for~every~} \theta",
    code=(next_token_loss, BahdanauRecurrence, build_optimizer),
    breaks=("attention-without-gradient", "uniform-attention", "memory-without-gradient", "biases-never-updated",
            "score-ignores-the-query"),
)  # fmt: skip
def gradient_reaches_all() -> CheckResult:
    model, settings = build_random("bahdanau"), load("bahdanau").train.optimizer
    named = dict(model.named_parameters())
    batch = Batch({"source": pad(SOURCES), "target": pad(TARGETS)})
    loss = next_token_loss(model, batch, torch.Generator(), label_smoothing=0.0)["next-token"].sum
    expected = torch.zeros((), dtype=torch.float64)
    for row, words in enumerate(TARGETS):
        probabilities = write_by_formula(model, row).outputs.softmax(-1)
        expected = expected - sum(probabilities[t, word].log() for t, word in enumerate(words))
    found, right = (_differentiate(value, named) for value in (loss, expected))
    attention = [name for name in named if "cross.score" in name]
    before = {name: p.detach().clone() for name, p in named.items()}
    optimizer = build_optimizer(settings, model)
    for name, p in named.items():
        p.grad = found[name]
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    unchanged = [name for name, p in named.items() if max_difference(p, before[name]) == 0]
    return build_result(
        expect_near("loss: difference from the formula", float((loss - expected).detach()), 0, within=1e-10),
        expect_near(
            "largest difference of a gradient from that of the formula",
            max(max_difference(found[name], right[name]) for name in named),
            0,
            within=1e-10,
        ),
        expect_at_least(
            f"smallest gradient norm of the {len(named)} parameters",
            min(float(gradient.norm()) for gradient in found.values()),
            1e-6,
        ),
        expect_at_least(
            "smallest gradient norm of the matrices v, W and U of attention",
            min((float(found[name].norm()) for name in attention), default=0.0),
            1e-6,
        ),
        expect_equal("parameters that an optimizer step leaves as they are", ", ".join(unchanged) or "none", "none"),
    )


def _differentiate(loss: Tensor, named: dict[str, Any]) -> dict[str, Tensor]:
    """The gradient of each parameter; zeros where the loss does not depend on it."""
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: p.new_zeros(p.shape) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}


@check(
    23,
    "S3:104-118",
    "The context uses all states of the encoder, not only the last one.",
    formula=r"\frac{\partial c_t}{\partial h_i} \neq 0 \quad \text{for~all~} i",
    code=(attend, SoftAttention, Additive),
    breaks=("uniform-attention", "attention-to-the-first-key", "attention-to-the-last-state", "unmasked-attention",
            "doubled-values"),
)  # fmt: skip
def uses_all_states() -> CheckResult:
    model, before = build_random("bahdanau"), build_random("sutskever")
    reached, differences, padding = [], [], 0.0
    h = model.read(BATCH).states.detach().requires_grad_()
    ours = _differentiate_steps(_write(model, h), h)
    for row, ids in enumerate(SOURCES):
        known = h.detach()[row, : len(ids)].requires_grad_()
        expected = _differentiate_steps(write_by_formula(model, row, known).outputs, known)
        found = ours[: len(expected), row]
        differences.append(max_difference(found[:, : len(ids)], expected))
        reached.append(int((found[:, : len(ids)].norm(dim=-1).amin(0) > MIN_GRADIENT).sum()))
        padding = max(padding, float(found[:, len(ids) :].abs().sum()))
    states = before.read(BATCH).states.detach().requires_grad_()
    fixed = _differentiate_steps(_write(before, states), states)
    return build_result(
        expect_equal(
            "encoder states that every step of the decoder depends on, for 6 and 3 words", str(reached), "[6, 3]"
        ),
        expect_near(
            "gradient with respect to encoder states: difference from the formula", max(differences), 0, within=1e-10
        ),
        expect_equal("gradient with respect to states of padding", padding, 0.0),
        expect_equal(
            "without attention: gradient with respect to the states that attention would use",
            float(fixed.abs().sum()),
            0.0,
        ),
    )


def _write(model: Model, states: Tensor) -> Tensor:
    """The logits (T, B, V) of all words, given other encoder states; the initial state stays as it is."""
    memory, target = replace(model.read(BATCH), states=states), BATCH["target"]
    return model.writer.head(model.write(target.content, target.mask, memory)[0]).transpose(0, 1)


def _differentiate_steps(logits: Tensor, states: Tensor) -> Tensor:
    """The gradient of each step's logits, in one direction, with respect to the encoder states: (T, *states.shape)."""
    direction = torch.linspace(-1, 1, logits.shape[-1], dtype=logits.dtype)
    found = [
        torch.autograd.grad((step * direction).sum(), states, retain_graph=True, allow_unused=True)[0]
        for step in logits
    ]
    return torch.stack([torch.zeros_like(states) if gradient is None else gradient for gradient in found])
