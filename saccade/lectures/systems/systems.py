"""Checks on systems before the Transformer: the models of their recipes compute what the notes describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from saccade.config.load import load
from saccade.config.schema import Recipe, RecurrentWriterStack
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.layers.memory import Memory
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.small import VOCABULARY_SIZE, max_difference
from saccade.model.build.model import build
from saccade.model.model import Model

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10]])
TARGET = torch.tensor([[1, 12, 13, 14, 15]])  # begins with [START]
REAL = torch.ones_like(SOURCE, dtype=torch.bool)


def load_system(name: str, changes: Sequence[str] = ()) -> Recipe:
    """Load a recipe with width 12 and without dropout."""
    small = [f"{part}.stack.dim=12" for part in ("reader", "writer")]
    still = [f"{key}=0.0" for part in ("reader", "writer") for key in (f"{part}.dropout", f"{part}.stack.dropout")]
    return load(name, overrides=[*small, *still, *changes])


def build_system(name: str, changes: Sequence[str] = ()) -> Model:
    """Build the model of such a recipe in float64."""
    recipe = load_system(name, changes)
    return build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()


@torch.no_grad()
def decode_stepwise(model: Model, memory: Memory, *, attends: bool) -> tuple[Tensor, Tensor]:
    """Return the logits of every target word, computed step by step, and the attention weights if `attends`."""
    state, logits, weights = model.writer.start(memory, capacity=TARGET.shape[1]), [], []
    for t in range(TARGET.shape[1]):
        step = model.writer.step(TARGET[:, t : t + 1], state, align=attends)
        state = step.state
        logits.append(step.logits)
        weights += [step.weights] if step.weights is not None else []
    return torch.stack(logits, 1), torch.stack(weights, 1) if weights else torch.empty(0)


@torch.no_grad()
def decode_at_once(model: Model, memory: Memory) -> Tensor:
    return model.writer.head(model.writer(TARGET, torch.ones_like(TARGET, dtype=torch.bool), memory))


FIXED_CONTEXT = [
    "reader.stack.reverse=false",
    "writer.stack.initial_state=predicted",
    "writer.stack.input_feeding=true",
]


@check(
    2,
    "S3:24,100",
    "The first decoder state is predicted from the last encoder state, and the context is that state: c = h_T.",
    formula=r"c = h_T, \quad s_0 = \tanh(W c)",
    code=(InitialState,),
)
def context_is_the_last_state() -> CheckResult:
    model = build_system("sutskever", FIXED_CONTEXT)
    memory = model.reader(SOURCE, REAL)
    first = model.writer.stack.first
    c = first.summarize(memory)
    expected = torch.tanh(first.predict(c)).unflatten(-1, first.shape)  # layers, h and cell state, width
    s = model.writer.start(memory, capacity=1).hidden
    found = torch.stack([torch.stack(layer, 1) for layer in s], 1)
    return build_result(
        expect_equal("default of writer.stack.context", RecurrentWriterStack().context, "last"),
        expect_equal("c: largest difference from h_T", max_difference(c, memory.states[:, -1]), 0.0),
        expect_near("s_0: difference from tanh(W c)", max_difference(found, expected), 0, within=1e-12),
    )


@check(
    3,
    "S3:33",
    "The decoder computes s_t from y_(t-1), s_(t-1) and a fixed context c; it gets no other information on the source.",
    formula=r"s_t = g_U(y_{t-1}, s_{t-1}, c)",
    code=(RecurrentWriter,),
)
def one_fixed_context() -> CheckResult:
    model = build_system("sutskever", FIXED_CONTEXT)
    with torch.no_grad():
        memory = model.reader(SOURCE, REAL)
    assert memory.final is not None
    other_states = replace(memory, states=memory.states + 1)
    other_last = replace(memory, final=tuple(tuple(part + 1 for part in layer) for layer in memory.final))
    whole = decode_at_once(model, memory)
    return build_result(
        expect_near(
            "difference of parallel and step-by-step computation",
            max_difference(whole, decode_stepwise(model, memory, attends=False)[0]),
            0,
            within=1e-12,
        ),
        expect_equal(
            "change of the output when h_1 ... h_(T-1) change",
            max_difference(decode_at_once(model, other_states), whole),
            0.0,
        ),
        expect_at_least(
            "change of the output when h_T changes", max_difference(decode_at_once(model, other_last), whole), 1e-6
        ),
    )


@check(
    6,
    "S3:92",
    "Sequence to sequence learning (Sutskever et al. 2014) uses stacked LSTMs and reverses the source.",
    formula=r"(x_T, \dots, x_1) \to h_T \to (y_1, y_2, \dots)",
    code=(RecurrentStack,),
)
def sutskever() -> CheckResult:
    backwards, forwards = build_system("sutskever"), build_system("sutskever", ["reader.stack.reverse=false"])
    forwards.load_state_dict(backwards.state_dict())
    states, expected = backwards.reader(SOURCE, REAL).states, forwards.reader(SOURCE.flip(1), REAL).states.flip(1)
    layers = [
        sum(isinstance(part, nn.LSTM) for part in side.modules()) for side in (backwards.reader, backwards.writer)
    ]
    return build_result(
        expect_equal("LSTM layers of encoder and decoder", str(layers), "[2, 2]"),
        expect_near("difference from reading the reversed source", max_difference(states, expected), 0, within=1e-12),
    )


@check(
    17,
    "S3:140,156",
    "With attention, s_t is computed from y_(t-1), s_(t-1) and the context c_t, whose query is s_(t-1).",
    formula=r"s_t = g_U(y_{t-1}, s_{t-1}, c_t), \quad e_{t,i} = f_{att}(s_{t-1}, h_i)",
    code=(RecurrentWriter,),
)
def context_of_each_step() -> CheckResult:
    model = build_system("bahdanau")
    with torch.no_grad():
        memory = model.reader(SOURCE, REAL)
        first_weights = [
            model.writer.step(torch.tensor([[word]]), model.writer.start(memory, capacity=1), align=True).weights
            for word in (12, 13)
        ]
    logits, weights = decode_stepwise(model, memory, attends=True)
    steps = [max_difference(weights[:, t], weights[:, t + 1]) for t in range(weights.shape[1] - 1)]
    return build_result(
        expect_near(
            "difference of parallel and step-by-step computation",
            max_difference(decode_at_once(model, memory), logits),
            0,
            within=1e-12,
        ),
        expect_equal(
            "first attention weights for two different words: difference", max_difference(*first_weights), 0.0
        ),
        expect_at_least("smallest change of the weights from one step to the next", min(steps), 1e-6),
    )
