"""Checks on the attention of the recipe bahdanau: scores, weights, context vectors, gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.attention.scores import Additive, attend, masked_softmax
from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.layers.record import record
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear, compute_softmax, embed_tokens, shift_targets
from saccade.lectures.references.recurrent import Step, write_with_attention
from saccade.lectures.small import (
    VOCABULARY_SIZE,
    build_small_batch,
    build_small_model,
    max_difference,
    randomize_parameters,
    sample_normal,
)
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.objectives.objectives import next_token_loss

SMALL = [
    "reader.stack.dim=10", "writer.stack.dim=7", "reader.dropout=0", "writer.dropout=0", "writer.tie=none",
    "reader.stack.dropout=0", "writer.stack.dropout=0",
]  # fmt: skip


class Translated(NamedTuple):
    """A small translator, a batch with padding, what the model computes for it, and what the formulas give."""

    model: Model
    batch: Batch
    states: Tensor  # h, of the reader
    mask: Tensor
    inputs: Tensor  # target ids, shifted
    hidden: Tensor
    weights: Tensor
    contexts: Tensor
    expected: Step


def build_translator() -> Model:
    recipe = load("bahdanau", overrides=SMALL)
    model = build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    return randomize_parameters(model.double().eval(), scale=0.5)


def translate() -> Translated:
    """Run the model over two pairs of sequences of different lengths."""
    model = build_translator()
    batch = Batch({"source": pad([[5, 6, 7, 8, 9], [10, 11]]), "target": pad([[12, 13, 14, 15], [15, 16, 17]])})
    inputs, contexts = shift_targets(batch["target"].ids), list[Tensor]()
    memory = model.read(batch)
    watch = model.writer.stack.recurrence.cross.register_forward_hook(lambda *found: contexts.append(found[2][0]))
    with watch:
        hidden, aux = model.write(inputs, batch["target"].mask, memory)
    states, mask = memory.states, batch["source"].mask
    expected = compute_by_hand(model, inputs, states, mask)
    context = torch.cat(contexts, 1)
    return Translated(model, batch, states, mask, inputs, hidden, aux["attention"].weights, context, expected)


def compute_by_hand(model: Model, inputs: Tensor, states: Tensor, mask: Tensor) -> Step:
    """The formulas, from the reader's states on; s_0 comes from the last state of each direction."""
    half = states.shape[-1] // 2
    last = states[torch.arange(len(states)), mask.sum(1) - 1, :half]
    summary = torch.cat((last, states[:, 0, half:]), -1)
    x = embed_tokens(model.writer.embedding, inputs)
    return write_with_attention("gru", model.writer.stack, x, states, mask, summary=summary)


@check(
    14,
    "S3:121",
    "The alignment score of Bahdanau is a small network of the decoder's state and an encoder's state.",
    formula=r"e_{t,i} = v^\top \tanh(W s_{t-1} + U h_i)",
    code=(Additive, BahdanauRecurrence),
    breaks=(
        "uniform-attention",
        "additive-score-ignores-query",
        "additive-score-is-linear",
        "attention-queries-the-new-state",
        "attention-off-by-one",
    ),
)
@torch.no_grad()
def additive_score() -> CheckResult:
    found = translate()
    score: Any = found.model.writer.stack.recurrence.cross.score
    w, u, v = score.query.weight, score.key.weight, score.energy.weight[0]
    by_hand = torch.stack(
        [torch.stack([v @ torch.tanh(w @ s + u @ h) for h in found.states[0]]) for s in found.expected.queries[0]]
    )
    relative = found.weights[0].log() - found.weights[0, :, :1].log()  # e_i - e_1, which the softmax keeps
    other = found.inputs.clone()
    other[:, 0] = 18  # in place of START: s_1 depends on it, s_0 does not
    changed = found.model.write(other, found.batch["target"].mask, found.model.read(found.batch))[1]["attention"]
    change = (changed.weights - found.weights).abs()[0].amax(-1)
    return build_result(
        expect_near(
            "scores: difference from the formula",
            max_difference(score(found.expected.queries[0], found.states[0]), by_hand),
            0,
            within=1e-12,
        ),
        expect_near(
            "scores behind the weights of the model, relative to the first: difference from the formula with s_{t-1}",
            max_difference(relative, by_hand - by_hand[:, :1]),
            0,
            within=1e-11,
        ),
        expect_near(
            "weights, also of a shorter source: difference from the softmax of these scores",
            max_difference(found.weights, found.expected.weights),
            0,
            within=1e-12,
        ),
        expect_near("another y_0: change of the weights of step 1, whose query is s_0", float(change[0]), 0, within=0),
        expect_at_least("another y_0: change of the weights of step 2", float(change[1]), 1e-4),
    )


@check(
    15,
    "S3:129",
    "Attention weights lie between 0 and 1 and sum to 1; padding gets exactly 0.",
    formula=r"0 < a_{t,i} < 1, \quad \sum_i a_{t,i} = 1",
    code=(masked_softmax, SoftAttention),
    breaks=(
        "unmasked-attention",
        "uniform-attention",
        "softmax-over-queries",
        "unnormalized-attention",
        "attention-to-the-first-key",
    ),
)
@torch.no_grad()
def weights_are_a_distribution() -> CheckResult:
    mask = torch.arange(7) < torch.tensor([[7], [5], [1], [0]])  # the last query may attend to nothing
    q, k = sample_normal(4, 8), sample_normal(7, 8)
    a = attend(q, k, sample_normal(7, 3), mask=mask)[1]
    by_hand = compute_softmax(q @ k.T / 8**0.5, mask)
    found = translate()
    with record(model := build_small_model()) as maps:
        batch = build_small_batch()
        model.write(batch["target"].ids, batch["target"].mask, model.read(batch))
    heads = [weights for name, weights in maps.items() if "cross" in name]
    padding = torch.stack([weights[1, :, :, 2:] for weights in heads])
    real = found.weights.masked_select(found.mask[:, None].expand_as(found.weights))
    return build_result(
        expect_near(
            "weights: difference from exp(e_i) / Σ exp(e_j)", max_difference(a[:3], by_hand[:3]), 0, within=1e-12
        ),
        expect_equal("sum of the weights where all keys are padding", float(a[3].abs().sum()), 0.0),
        expect_near(
            "bahdanau: difference of the weights from the formula",
            max_difference(found.weights, found.expected.weights),
            0,
            within=1e-12,
        ),
        expect_near(
            "bahdanau: largest distance of a sum from 1",
            float((found.weights.sum(-1) - 1).abs().max()),
            0,
            within=1e-12,
        ),
        expect_at_least("bahdanau: smallest weight of a real position", float(real.min()), 1e-12),
        expect_at_most("bahdanau: largest weight", float(real.max()), 1 - 1e-12),
        expect_equal("bahdanau: largest weight of padding", float(found.weights[1, :, 2:].max()), 0.0),
        expect_near(
            "transformer, cross-attention: largest distance of a sum from 1",
            max(float((weights.sum(-1) - 1).abs().max()) for weights in heads),
            0,
            within=1e-12,
        ),
        expect_equal("transformer, cross-attention: largest weight of padding", float(padding.max()), 0.0),
    )


@check(
    16,
    "S3:138",
    "The context vector is the sum of the encoder's states, weighted by attention.",
    formula=r"c_t = \sum_i a_{t,i} h_i",
    code=(attend, SoftAttention),
    breaks=(
        "uniform-attention",
        "doubled-values",
        "shifted-values",
        "context-left-out",
        "unmasked-attention",
    ),
)
@torch.no_grad()
def context_vector() -> CheckResult:
    found = translate()
    a, h = found.weights, found.states
    by_hand = torch.stack(
        [torch.stack([sum(a[b, t, i] * h[b, i] for i in range(h.shape[1])) for t in range(a.shape[1])]) for b in (0, 1)]  # type: ignore[misc]
    )
    outputs = apply_linear(found.model.writer.output, found.expected.outputs)
    return build_result(
        expect_near(
            "c_t: difference from the sum of the reader's states with the model's weights",
            max_difference(found.contexts, by_hand),
            0,
            within=1e-12,
        ),
        expect_near(
            "c_t: difference from the formula, weights included",
            max_difference(found.contexts, found.expected.contexts),
            0,
            within=1e-12,
        ),
        expect_near(
            "logits, into which c_t enters: difference from the formula",
            max_difference(found.model.writer.head(found.hidden), outputs),
            0,
            within=1e-11,
        ),
    )


@check(
    18,
    "S3:144",
    "Everything is differentiable: attention weights are learned without supervision.",
    formula=r"\frac{\partial L}{\partial e} = \frac{\partial L}{\partial c} "
    r"\frac{\partial c}{\partial a} \frac{\partial a}{\partial e}",
    code=(attend, Additive, next_token_loss),
    breaks=(
        "attention-without-gradient",
        "keys-without-gradient",
        "uniform-attention",
        "attention-to-the-first-key",
        "context-left-out",
    ),
)
def differentiable() -> CheckResult:
    found = translate()
    score: Any = found.model.writer.stack.recurrence.cross.score
    matrices = {"W": score.query.weight, "U": score.key.weight, "v": score.energy.weight}
    loss = measure_loss(found)
    loss.backward()
    compared = []
    for name, matrix in matrices.items():
        direction = torch.randn_like(matrix)
        slope = estimate_slope(found, matrix, direction)
        gradient = torch.zeros_like(matrix) if matrix.grad is None else matrix.grad
        compared.append(
            expect_near(
                f"derivative of the loss with respect to {name} by backpropagation, expected finite differences",
                float((gradient * direction).sum()),
                slope,
                within=1e-6 + 1e-4 * abs(slope),
            )
        )
        compared.append(
            expect_at_least(f"norm of the gradient of {name}, of the loss alone", float(gradient.norm()), 1e-3)
        )
    return build_result(
        *compared,
        expect_near(
            "loss: difference from the cross-entropy of the target tokens, without any alignment",
            float(loss.detach()) - compute_cross_entropy(found),
            0,
            within=1e-4,
        ),
    )


def measure_loss(found: Translated) -> Tensor:
    """All terms of the loss, by their weights."""
    terms = next_token_loss(found.model, found.batch, torch.Generator(), label_smoothing=0.0)
    return torch.stack([term.weight * term.sum for term in terms.values()]).sum()


@torch.no_grad()
def compute_cross_entropy(found: Translated) -> float:
    """-Σ log p(y_t) over the real tokens, by the formulas."""
    written = compute_by_hand(found.model, found.inputs, found.states, found.mask)
    log_probs = apply_linear(found.model.writer.output, written.outputs).log_softmax(-1)
    target = found.batch["target"]
    return -float(log_probs.gather(-1, target.ids[..., None])[..., 0][target.mask].sum())


@torch.no_grad()
def estimate_slope(found: Translated, matrix: Tensor, direction: Tensor) -> float:
    """Central difference of the loss along a direction, computed by hand."""
    losses = []
    for step in (1e-4, -1e-4):
        matrix += step * direction
        losses.append(compute_cross_entropy(found))
        matrix -= step * direction
    return (losses[0] - losses[1]) / 2e-4
