"""Checks on recurrent networks: their recurrence, path lengths, vanishing gradients, both directions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.recurrent import CellName, RecurrentStack, run_layer
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.references.recurrent import read, unroll
from saccade.lectures.references.transformer import compute_attention
from saccade.lectures.scale.graphs import find_longest_path
from saccade.lectures.small import max_difference, sample_normal
from saccade.lectures.systems.recurrent_models import BATCH, SOURCES, build_random, compare_rows
from saccade.model.model import Model

CELLS: tuple[CellName, ...] = ("rnn", "gru", "lstm")
CHANGED = 1e-9  # differences above it are no rounding errors


def build_encoder(cell: CellName, changes: tuple[str, ...] = ()) -> Model:
    """Build the recipe `sutskever` with this cell, and an encoder that reads from left to right."""
    cells = [f"{part}.stack.cell={cell}" for part in ("reader", "writer")]
    return build_random("sutskever", [*cells, "reader.stack.reverse=false", *changes])


@check(
    1,
    "S3:13",
    "A recurrent encoder computes each state from the input and the state before it.",
    formula=r"h_t = f_W(x_t, h_{t-1})",
    code=(RecurrentStack,),
    recipes=("sutskever",),
    breaks=(
        "encoder-forgets-its-state",
        "encoder-ignores-its-words",
        "recurrence-over-padding",
        "upper-layers-skipped",
    ),
)
@torch.no_grad()
def step_by_step() -> CheckResult:
    compared = []
    for cell in CELLS:
        model = build_encoder(cell)
        memory, expected = model.read(BATCH), [read(model, ids, cell=cell) for ids in SOURCES]
        states, final = [one.states for one in expected], [one.final[-1][0] for one in expected]
        padded, last, _ = model.reader.stack.run_padded(memory.inputs, BATCH["source"].mask.sum(1))  # as on a GPU
        compared += [
            expect_near(
                f"{cell}: difference from the formula, one step after the other, two layers",
                compare_rows(memory.states, states),
                0,
                within=1e-12,
            ),
            expect_near(
                f"{cell}: last state, with padding behind it: difference",
                compare_rows(memory.final[-1][0], final),
                0,
                within=1e-12,
            ),
            expect_near(
                f"{cell}: the same without packing: difference",
                max(compare_rows(padded, states), compare_rows(last[-1][0], final)),
                0,
                within=1e-12,
            ),
        ]
        moved = BATCH["source"].content.clone()
        moved[:, 2] = 20
        changes = (model.reader(moved, BATCH["source"].mask).states - memory.states)[0].abs().amax(-1) > CHANGED
        compared.append(
            expect_equal(
                f"{cell}: states that another third word changes", "".join("01"[c] for c in changes.tolist()), "001111"
            )
        )
    return build_result(*compared)


STEPS = 24


@check(
    7,
    "S1:17",
    "In a recurrent network, information between two words at distance N passes through O(N) steps.",
    formula=r"\mathrm{path}(x_i, h_j) = j - i",
    code=(RecurrentStack, run_layer),
    breaks=("encoder-forgets-its-state", "encoder-shortcut-through-time", "encoder-ignores-its-words"),
)
@torch.no_grad()
def distance() -> CheckResult:
    compared = []
    for cell in CELLS:
        stack = build_encoder(cell, ("reader.stack.layers=1", "writer.stack.layers=1")).reader.stack
        x = sample_normal(1, STEPS, stack.dim)
        whole, states = stack(x, None)[0][0], unroll(cell, stack.layers[0], x[0])
        edges, passed = torch.zeros(STEPS, STEPS, dtype=torch.bool), 0
        for t in range(STEPS - 1):  # cut the network behind state t: what is before it can act only through it
            kept, moved = (
                run_layer(stack.layers[0], x[:, t + 1 :], tuple(part[None] + delta for part in states[t]))[0][0]
                for delta in (0, 1)
            )
            passed += max_difference(kept[-1], whole[-1]) < CHANGED
            edges[t + 1, t] = max_difference(moved[0], kept[0]) > CHANGED
        first = x.clone()
        first[:, 0] += 1
        compared += [
            expect_equal(
                f"{cell}: states at which the last one knows the first word only by the state", passed, STEPS - 1
            ),
            expect_equal(f"{cell}: steps from the first word to the last state", find_longest_path(edges), STEPS - 1),
            expect_at_least(
                f"{cell}: change of the last state by the first word, {STEPS - 1} steps away",
                max_difference(stack(first, None)[0][0, -1], whole[-1]),
                1e-14,
            ),
        ]
    return build_result(*compared)


LENGTH, WIDTH = 64, 32
TINY = 1e-300  # instead of 0, where something is divided by it


@check(
    8,
    "S1:24-29, S4:28-33",
    "The longer the path, the smaller the gradient: it vanishes along a recurrent network, but not through attention.",
    formula=r"\frac{\partial s}{\partial z} = \frac{\partial s}{\partial h} \frac{\partial h}{\partial z}",
    code=(RecurrentStack, SelfAttention),
    breaks=("encoder-forgets-its-state", "encoder-shortcut-through-time", "uniform-attention",
            "attention-without-gradient"),
)  # fmt: skip
def vanishing_gradient() -> CheckResult:
    stack, layer = RecurrentStack(WIDTH, cell="rnn", layers=1).double(), SelfAttention(WIDTH, heads=2).double()
    x, direction = sample_normal(32, LENGTH, WIDTH), sample_normal(32, WIDTH)
    recurrent = _differentiate(lambda y: stack(y, None)[0], x, direction)
    attending = _differentiate(layer, x, direction)
    formula = _differentiate(lambda y: compute_attention(layer, y), x, direction)
    along, through = ([float(value) for value in found.norm(dim=-1).mean(0)] for found in (recurrent, attending))
    away = [float(LENGTH - 1 - t) for t in range(LENGTH)]
    curves = {"recurrent network (tanh)": (away, along), "self-attention": (away, through)}
    caption = "Norm of the gradient of the last output with respect to a word, against the word's distance."
    far = through[: LENGTH // 2]  # the first half of the sequence
    return build_result(
        expect_near(
            "recurrent: gradient over that of the chain rule, largest relative difference",
            _compare_relative(recurrent, _chain(stack, x, direction)),
            0,
            within=1e-9,
        ),
        expect_at_most(
            "recurrent: gradient 63 words back over that of the last word", along[0] / max(along[-1], TINY), 1e-6
        ),
        expect_at_least(
            "recurrent: steps back at which the gradient gets smaller, of 63",
            sum(a < b for a, b in pairwise(along)),
            58,
        ),
        expect_near(
            "attention: gradient, difference from that of the formula",
            max_difference(attending, formula),
            0,
            within=1e-10,
        ),
        expect_at_least("attention: smallest over largest gradient of the first 32 words", min(far) / max(far), 0.2),
        drawing=Lines("distance", "gradient norm", curves, caption, log_y=True),
    )


def _differentiate(run: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> Tensor:
    """The gradient of the last output, in one direction, with respect to all inputs."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad((run(x)[:, -1] * direction).sum(), x)[0]


@torch.no_grad()
def _chain(stack: RecurrentStack, x: Tensor, direction: Tensor) -> Tensor:
    """The same by the chain rule: ∂h_t/∂h_{t-1} = diag(1 - h_t²) U and ∂h_t/∂x_t = diag(1 - h_t²) W."""
    layer, found = stack.layers[0], torch.zeros_like(x)
    for row in range(len(x)):
        gradient = direction[row]
        for t, (h,) in reversed(list(enumerate(unroll("rnn", layer, x[row])))):
            inner = gradient * (1 - h.square())
            found[row, t], gradient = inner @ layer.weight_ih_l0, inner @ layer.weight_hh_l0
    return found


def _compare_relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference of the gradient of a word, over the norm of that gradient."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@check(
    9,
    "S1:33",
    "A bidirectional network reads in both directions and concatenates the two states; padding has no effect.",
    formula=r"h_t = (\mathrm{forward}_t; \mathrm{backward}_t)",
    code=(RecurrentStack,),
    recipes=("bahdanau",),
    breaks=("one-direction-only", "backward-states-not-realigned", "recurrence-over-padding",
            "encoder-forgets-its-state"),
)  # fmt: skip
@torch.no_grad()
def both_directions() -> CheckResult:
    model = build_random("bahdanau")
    memory, mask = model.read(BATCH), BATCH["source"].mask
    expected = [read(model, ids, cell="gru", direction="both") for ids in SOURCES]
    states, final = [one.states for one in expected], [one.final[-1][0] for one in expected]
    padded, last, _ = model.reader.stack.run_padded(memory.inputs, mask.sum(1))  # as on a GPU
    other_padding = model.reader(BATCH["source"].content.masked_fill(~mask, 20), mask).states
    moved = BATCH["source"].content.clone()
    moved[:, 2] = 20
    changed = (model.reader(moved, mask).states - memory.states)[0].abs() > CHANGED
    halves = ["".join("01"[value] for value in half.any(-1).tolist()) for half in changed.chunk(2, -1)]
    return build_result(
        expect_near(
            "difference from one forward and one backward network, with padding",
            compare_rows(memory.states, states),
            0,
            within=1e-12,
        ),
        expect_near(
            "last states of both directions: difference", compare_rows(memory.final[-1][0], final), 0, within=1e-12
        ),
        expect_near(
            "the same without packing: difference",
            max(compare_rows(padded, states), compare_rows(last[-1][0], final)),
            0,
            within=1e-12,
        ),
        expect_equal(
            "change of the shorter sequence by other padding",
            max_difference(other_padding[1, :3], memory.states[1, :3]),
            0.0,
        ),
        expect_equal("states that another third word changes, forward and backward", " ".join(halves), "001111 111000"),
    )
