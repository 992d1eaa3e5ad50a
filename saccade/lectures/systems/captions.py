"""Checks on captioning: the model of the recipe show-attend-tell computes what notes and paper describe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.layers.attention.alignment import HardAttention
from saccade.layers.auxiliary import StepAttention
from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.layers.vision.patches import ResNetCells
from saccade.lectures.claims import CheckResult, Comparison, build_result, check, expect_at_most, expect_near
from saccade.lectures.references.basics import (
    apply_linear,
    build_causal_mask,
    compute_sinusoids,
    embed_tokens,
    shift_targets,
)
from saccade.lectures.references.recurrent import Step, predict_initial, write_with_attention
from saccade.lectures.references.transformer import Style, run_stack
from saccade.lectures.references.vision import list_cells, run_residual_network
from saccade.lectures.small import VOCABULARY_SIZE, max_difference, randomize_parameters
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.train.objectives.objectives import build_objectives, next_token_loss
from saccade.train.objectives.reinforce import plan_copies, reinforce_loss
from saccade.train.objectives.terms import Term

HIGH, WIDE, CELL = 16, 24, 4  # pixels of a picture, and of a cell
GRID = (HIGH // CELL, WIDE // CELL)
PRE_NORM = Style(pre_norm=True)
SMALL = [
    f"reader.size={HIGH}", f"reader.width={WIDE}", "reader.channels=[8, 12]", "reader.dropout=0", "writer.dropout=0",
    "writer.stack.dim=10", "writer.stack.dropout=0",
]  # fmt: skip
SMALL_TRANSFORMER = [
    *SMALL[:5], "reader.stack={layers=1, dim=12, heads=3, ff=17, dropout=0.0}",
    "writer.stack={layers=2, dim=12, heads=3, ff=17, dropout=0.0}",
]  # fmt: skip


# ---- small models, and their formulas


def build_small(name: str, changes: list[str]) -> Model:
    """Build a small model with random parameters, in float64 and without dropout."""
    model = build(load(name, overrides=changes), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    return randomize_parameters(model.double().eval(), scale=0.5)


def sample_batch(model: Model, *, high: int = HIGH, wide: int = WIDE) -> Batch:
    """Build a batch of two random pictures and two target sequences of different lengths."""
    values = torch.randint(0, 256, (2, 3, high, wide), dtype=torch.uint8)
    source = Pictures(values, torch.ones(2, int(np.prod(model.reader.grid)), dtype=torch.bool))
    return Batch({"source": source, "target": pad([[5, 6, 7, 2], [8, 9, 2]])})


def encode_picture(encoder: Any, pictures: Tensor) -> Tensor:
    """The cells of the feature map plus their positions, and then a Transformer, if there is one."""
    cells = list_cells(run_residual_network(encoder.cells.blocks, pictures))
    states = cells if encoder.positions is None else cells + encoder.positions.table.weight
    if encoder.stack is None:
        return states
    return run_stack(encoder.stack, states, PRE_NORM)


def embed_words(model: Model, ids: Tensor) -> Tensor:
    embedding = model.writer.embedding
    x = embed_tokens(embedding, ids)
    if embedding.positions is None:
        return x
    sinusoids = compute_sinusoids(ids.shape[1], x.shape[-1])
    return x + sinusoids.float()  # the table of the model is rounded to float32


def write_words(model: Model, states: Tensor, ids: Tensor) -> Step:
    """The writer of show-attend-tell by its formulas, given the words so far."""
    return write_with_attention("lstm", model.writer.stack, embed_words(model, ids), states, summary=states.mean(1))


def compute_logits(model: Model, pictures: Tensor, ids: Tensor) -> Tensor:
    """Logits of the next word after each of the words `ids`, by the formulas."""
    states, writer = encode_picture(model.reader, pictures), model.writer
    if model.reader.stack is None:
        return apply_linear(writer.output, write_words(model, states, ids).outputs)
    x, causal = embed_words(model, ids), build_causal_mask(ids.shape[1])
    hidden = run_stack(writer.stack, x, PRE_NORM, allowed=[causal], memory=states)
    return apply_linear(writer.output, hidden)


# ---- rows


@check(
    24,
    "S3:232-284",
    "On the feature grid of a picture, the softmax runs over all H x W positions, and c_t sums over the whole grid.",
    formula=r"e_{t,i,j} = f_{att}(s_{t-1}, h_{i,j}), \quad \sum_{i,j} a_{t,i,j} = 1, "
    r"\quad c_t = \sum_{i,j} a_{t,i,j} h_{i,j}",
    code=(ResNetCells, PictureReader, BahdanauRecurrence),
    recipes=("show-attend-tell", "show-attend-tell-transformer"),
    breaks=(
        "uniform-attention",
        "softmax-over-halves",
        "grid-in-column-order",
        "shifted-values",
        "picture-ignored",
    ),
)
@torch.no_grad()
def attention_over_a_grid() -> CheckResult:
    model = build_small("show-attend-tell", [*SMALL, "writer.stack.context_gate=false"])
    batch, contexts = sample_batch(model), list[Tensor]()
    ids = shift_targets(batch["target"].ids)
    memory = model.read(batch)
    watch = model.writer.stack.recurrence.cross.register_forward_hook(lambda *found: contexts.append(found[2][0]))
    with watch:
        weights = model.write(ids, batch["target"].mask, memory)[1]["attention"].weights
    h = encode_picture(model.reader, batch["source"].values)
    expected = write_words(model, h, ids)
    a = weights.unflatten(-1, GRID)
    grid = h.unflatten(1, GRID)
    return build_result(
        expect_near(
            "h: difference from the convolutions, cell by cell", max_difference(memory.states, h), 0, within=1e-11
        ),
        expect_near(
            "a: difference from the softmax of e over the whole grid",
            max_difference(weights, expected.weights),
            0,
            within=1e-11,
        ),
        expect_near("sum of a over the grid", float(a.sum((-2, -1)).max()), 1, within=1e-12),
        expect_at_most("largest sum of a over one row of the grid", float(a.sum(-1).max()), 0.999),
        expect_near(
            "c: difference from the double sum over rows and columns",
            max_difference(torch.cat(contexts, 1), torch.einsum("btij,bijd->btd", a, grid)),
            0,
            within=1e-11,
        ),
    )


@check(
    25,
    "S3:322",
    "Show, Attend and Tell (Xu et al. 2015): a captioning model attends to the picture anew for each word.",
    formula=r"c_t = \beta_t \sum_i a_{t,i} h_i, \quad \lambda \sum_i (1 - \sum_t a_{t,i})^2",
    code=(BahdanauRecurrence, HardAttention, next_token_loss, reinforce_loss),
    recipes=("show-attend-tell", "show-attend-tell-transformer"),
    breaks=(
        "uniform-attention",
        "attention-without-gradient",
        "open-context-gate",
        "first-state-without-memory",
        "coverage-left-out",
        "hard-attention-averages",
        "hard-attention-never-samples",
        "hard-attention-without-reward",
    ),
)
def show_attend_tell() -> CheckResult:
    model = build_small("show-attend-tell", SMALL)
    batch = sample_batch(model)
    target, memory = batch["target"], model.read(batch)
    ids = shift_targets(target.ids)
    states = encode_picture(model.reader, batch["source"].values)
    expected = write_words(model, states, ids)
    first = torch.stack([part for (*parts,) in model.writer.start(memory, capacity=1).hidden for part in parts], 1)
    by_hand = predict_initial("lstm", model.writer.stack, states.mean(1))
    [objective] = build_objectives(load("show-attend-tell", overrides=SMALL))
    terms = objective(model, batch, torch.Generator())
    zero = Term(0 * terms["next-token"].sum, 1, 0.0)
    coverage, v = terms.get("coverage", zero), model.writer.stack.recurrence.cross.score.energy.weight
    rows = zip(expected.weights, target.mask, strict=True)
    missed = torch.stack([(1 - row[real].sum(0)).pow(2).sum() for row, real in rows]).sum()
    return build_result(
        expect_near(
            "h_0 and c_0: difference from tanh of W times the mean of all cells",
            max_difference(first, torch.stack(by_hand[0], 1)),
            0,
            within=1e-12,
        ),
        expect_near(
            "logits: difference from attention, gate, LSTM and readout of the paper",
            max_difference(
                model.writer.head(model.write(ids, target.mask, memory)[0]),
                apply_linear(model.writer.output, expected.outputs),
            ),
            0,
            within=1e-11,
        ),
        expect_near(
            "the recipe's penalty, expected λ Σ_i (1 - Σ_t a_ti)² with λ = 0.002",
            float(coverage.sum.detach()) * coverage.weight,
            0.002 * float(missed.detach()),
            within=1e-9,
        ),
        expect_near(
            "its gradient with respect to v of the score: difference from that of the formula",
            max_difference(differentiate(coverage.sum, v), differentiate(missed, v)),
            0,
            within=1e-9,
        ),
        *compare_hard_attention(),
        note="`saccade train show-attend-tell --tiny`, with `writer.stack.hard_attention=true "
        "objectives=[{kind='reinforce', samples=4, reward_weight=1.0}]` for hard attention, which samples one cell.",
    )


def differentiate(loss: Tensor, parameter: Tensor) -> Tensor:
    """The gradient; zero where the loss does not depend on the parameter."""
    if not loss.requires_grad:
        return torch.zeros_like(parameter)
    [gradient] = torch.autograd.grad(loss, parameter, allow_unused=True, retain_graph=True)
    return torch.zeros_like(parameter) if gradient is None else gradient


def compare_hard_attention() -> list[Comparison]:
    """Hard attention: the largest weight in prediction, samples in training, and the loss that trains it."""
    changes = [*SMALL, "writer.stack.hard_attention=true", "objectives=[{kind='reinforce'}]"]
    model = build_small("show-attend-tell", changes)
    batch = sample_batch(model)
    memory, target, cross = model.read(batch), batch["target"], model.writer.stack.recurrence.cross
    query = torch.randn(2, 1, 10).double()
    with torch.no_grad():
        sharp, weights, _ = cross(query, cross.project_memory(memory))
        largest = memory.states[torch.arange(2), weights[:, 0].argmax(-1)]
        frequencies, mixed = sample_positions(cross.train(), query, memory)
    cross.eval()
    model.train()
    torch.manual_seed(1)
    soft = plan_copies(2, samples=1, soft_rate=0.5, like=memory.states).is_soft
    hidden, aux = model.write(shift_targets(target.ids), target.mask, replace(model.read(batch), soft_rows=soft))
    torch.manual_seed(1)
    policy = reinforce_loss(model, batch, torch.Generator())["looks"]
    log_probs = model.writer.head(hidden).log_softmax(-1).gather(-1, target.ids[..., None])[..., 0] * target.mask
    expected = compute_policy_loss(log_probs.detach(), aux["attention"], target.mask)
    v = cross.score.energy.weight
    return [
        expect_near(
            "hard attention: difference of c_t from the cell with the largest weight",
            max_difference(sharp[:, 0], largest),
            0,
            within=0.0,
        ),
        expect_near(
            "hard attention in training: largest difference of the frequencies of cells in 4,000 samples from a_t",
            max_difference(frequencies, weights[0, 0]),
            0,
            within=4 * 0.5 / 4000**0.5,
        ),
        expect_near("hard attention in training: share of soft attention", mixed, 0.5, within=4 * 0.5 / 8000**0.5),
        expect_near(
            "loss of the attention weights, expected REINFORCE",
            float(policy.sum.detach()),
            float(expected.detach()),
            within=1e-4,
        ),
        expect_near(
            "its gradient with respect to v of the score: difference from that of the formula",
            max_difference(differentiate(policy.sum, v), differentiate(expected, v)),
            0,
            within=1e-4,
        ),
    ]


def sample_positions(cross: HardAttention, query: Tensor, memory: Any) -> tuple[Tensor, float]:
    """How often each cell of the first picture is sampled, and the share of rows with soft attention."""
    rows = torch.zeros(8000, dtype=torch.long)
    soft = plan_copies(len(rows), samples=1, soft_rate=0.5, like=memory.states).is_soft
    many = type(memory)(memory.states[rows], memory.mask[rows], soft_rows=soft)
    context, _, sampled = cross(query[rows], cross.project_memory(many))
    hard = sampled[:, 0] >= 0
    is_one_cell = (context[hard] - memory.states[0][sampled[hard]]).abs().amax((-1, -2)) == 0
    counts = torch.bincount(sampled[hard][is_one_cell][:, 0], minlength=memory.states.shape[1])
    return counts.double() / max(1, int(hard.sum())), 1 - float(hard.double().mean())


def compute_policy_loss(log_probs: Tensor, attention: StepAttention, mask: Tensor) -> Tensor:
    """-Σ_t (Σ_{u >= t} (log p(y_u) - b)) log a_t(s_t), where b is the mean log-probability and s_t was sampled."""
    baseline, total = log_probs.sum() / mask.sum(), torch.zeros(()).double()
    for b, t in mask.nonzero().tolist():
        later = [log_probs[b, u] - baseline for u in range(t, mask.shape[1]) if mask[b, u]]
        sampled = int(attention.sampled_positions[b, t])
        if sampled >= 0:
            total = total - torch.stack(later).sum() * attention.weights[b, t, sampled].log()
    return total
