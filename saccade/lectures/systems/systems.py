"""Rows about whole systems before the Transformer: what their recipes build does what the notes write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from saccade.config.load import load
from saccade.config.schema import RecurrentWriting
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.blocks.recurrent_writer import FirstState, RecurrentWriter
from saccade.layers.memory import Memory
from saccade.lectures.claims import Measured, at_least, check, measured, near, same
from saccade.lectures.scale.graphs import seen_by
from saccade.lectures.small import VOCABULARY, apart, numbers
from saccade.model.build.model import build
from saccade.model.model import Model

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10]])
TARGET = torch.tensor([[1, 12, 13, 14, 15]])  # begins with [START]
REAL = torch.ones_like(SOURCE, dtype=torch.bool)


def system(name: str, changes: Sequence[str] = ()) -> Model:
    """A recipe of ours with layers of width 12, in double precision and without dropout."""
    small = [f"{part}.stack.dim=12" for part in ("reader", "writer")]
    still = [f"{key}=0.0" for part in ("reader", "writer") for key in (f"{part}.dropout", f"{part}.stack.dropout")]
    recipe = load(name, overrides=[*small, *still, *changes])
    return build(recipe, source_size=VOCABULARY, target_size=VOCABULARY).double().eval()


@torch.no_grad()
def step_by_step(model: Model, memory: Memory, *, attends: bool) -> tuple[Tensor, Tensor]:
    """The logits of every target word, one step after the other, and what each step looked at, where it did."""
    state, logits, weights = model.writer.start(memory, capacity=TARGET.shape[1]), [], []
    for t in range(TARGET.shape[1]):
        step = model.writer.step(TARGET[:, t : t + 1], state, align=attends)
        state = step.state
        logits.append(step.logits)
        weights += [step.weights] if step.weights is not None else []
    return torch.stack(logits, 1), torch.stack(weights, 1) if weights else torch.empty(0)


@torch.no_grad()
def all_at_once(model: Model, memory: Memory) -> Tensor:
    return model.writer.head(model.writer(TARGET, torch.ones_like(TARGET, dtype=torch.bool), memory))


FIXED = ["reader.stack.reverse=false", "writer.stack.first=predicted", "writer.stack.input_feeding=true"]


@check(
    2,
    "S3:24,100",
    "The first decoder state is predicted from the last encoder state, and the context is that state: c = h_T.",
    formula=r"c = h_T, \quad s_0 = \tanh(W c)",
    code=(FirstState,),
)
def context_is_the_last_state() -> Measured:
    model = system("sutskever", FIXED)
    memory = model.reader(SOURCE, REAL)
    first = model.writer.stack.first
    c = first.summary(memory)
    wanted = torch.tanh(first.predict(c)).unflatten(-1, first.shape)  # layers, h and cell state, width
    s = model.writer.start(memory, capacity=1).hidden
    found = torch.stack([torch.stack(layer, 1) for layer in s], 1)
    return measured(
        same("context of a recipe that does not say", RecurrentWriting().context, "last"),
        same("c against h_T: largest difference", apart(c, memory.states[:, -1]), 0.0),
        near("s_0 against tanh(W c)", apart(found, wanted), 0, within=1e-12),
    )


@check(
    3,
    "S3:33",
    "The decoder computes s_t from y_(t-1), s_(t-1) and one fixed c: nothing else of the source reaches it.",
    formula=r"s_t = g_U(y_{t-1}, s_{t-1}, c)",
    code=(RecurrentWriter,),
)
def one_fixed_context() -> Measured:
    model = system("sutskever", FIXED)
    with torch.no_grad():
        memory = model.reader(SOURCE, REAL)
    assert memory.final is not None
    other_states = replace(memory, states=memory.states + 1)
    other_last = replace(memory, final=tuple(tuple(part + 1 for part in layer) for layer in memory.final))
    whole = all_at_once(model, memory)
    return measured(
        near(
            "all words at once against step by step",
            apart(whole, step_by_step(model, memory, attends=False)[0]),
            0,
            within=1e-12,
        ),
        same("change of the output when h_1 ... h_(T-1) change", apart(all_at_once(model, other_states), whole), 0.0),
        at_least("change of the output when h_T changes", apart(all_at_once(model, other_last), whole), 1e-6),
    )


@check(
    6,
    "S3:92",
    "Sequence to sequence learning (Sutskever et al. 2014): stacked LSTMs, and the source read backwards.",
    formula=r"(x_T, \dots, x_1) \to h_T \to (y_1, y_2, \dots)",
    code=(RecurrentStack,),
)
def sutskever() -> Measured:
    backwards, forwards = system("sutskever"), system("sutskever", ["reader.stack.reverse=false"])
    forwards.load_state_dict(backwards.state_dict())
    states, turned = backwards.reader(SOURCE, REAL).states, forwards.reader(SOURCE.flip(1), REAL).states.flip(1)
    layers = [
        sum(isinstance(part, nn.LSTM) for part in side.modules()) for side in (backwards.reader, backwards.writer)
    ]
    return measured(
        same("LSTM layers that read, and that write", str(layers), "[2, 2]"),
        near("reading backwards against the reversed source", apart(states, turned), 0, within=1e-12),
    )


@check(
    11,
    "S1:64-70, S3:1460-1474",
    "Convolution-style models: each layer sees a window, many layers see far, and a writer's layers never look ahead.",
    formula=r"\mathrm{field} = 1 + L (k - 1)",
    code=(ConvolutionStack,),
)
def convolution_style() -> Measured:
    compared = []
    for layers in (1, 2, 4):
        reader = system("convs2s", [f"reader.stack.layers={layers}"]).reader.stack
        with torch.no_grad():
            seen = seen_by(lambda x, reader=reader: reader(x, None)[0], 21, 12)  # type: ignore[misc]
        name = f"words seen by the middle one, {layers} layers of k = 3"
        compared.append(same(name, int(seen[10].sum()), 1 + 2 * layers))
    model = system("convs2s")
    memory, x = model.reader(SOURCE, REAL), numbers(1, 9, 12)
    moved = x.clone()
    moved[:, 6] += 1
    with torch.no_grad():
        before, after = (model.writer.stack(y, None, memory)[0] for y in (x, moved))
    compared.append(same("writer: outputs before a changed word that change, of 6", _changed(before, after, end=6), 0))
    return measured(*compared)


def _changed(before: Tensor, after: Tensor, *, end: int) -> int:
    """How many of the first positions differ by more than rounding."""
    return int(((before - after)[0, :end].abs().amax(-1) > 1e-12).sum())


@check(
    17,
    "S3:140,156",
    "With attention s_t comes from y_(t-1), s_(t-1) and c_t, and the look that gives c_t is taken with s_(t-1).",
    formula=r"s_t = g_U(y_{t-1}, s_{t-1}, c_t), \quad e_{t,i} = f_{att}(s_{t-1}, h_i)",
    code=(RecurrentWriter,),
)
def context_of_each_step() -> Measured:
    model = system("bahdanau")
    with torch.no_grad():
        memory = model.reader(SOURCE, REAL)
        looks = [
            model.writer.step(torch.tensor([[word]]), model.writer.start(memory, capacity=1), align=True).weights
            for word in (12, 13)
        ]
    logits, weights = step_by_step(model, memory, attends=True)
    steps = [apart(weights[:, t], weights[:, t + 1]) for t in range(weights.shape[1] - 1)]
    return measured(
        near("all words at once against step by step", apart(all_at_once(model, memory), logits), 0, within=1e-12),
        same("the first look, whatever the word before: difference", apart(*looks), 0.0),
        at_least("smallest change of the weights from one step to the next", min(steps), 1e-6),
    )
