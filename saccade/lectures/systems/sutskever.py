"""Checks on sequence to sequence learning without attention: one fixed context, stacked LSTMs, reversed source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saccade.config.schema import Decoding, RecurrentWriterStack
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, START
from saccade.layers.blocks.recurrence import FixedContextRecurrence
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.references.recurrent import predict_initial, read, write
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
from saccade.lectures.systems.symbols import train_on_pairs
from saccade.model.writers.tokens import shift_right
from saccade.predict.search.beam import beam_search
from saccade.predict.search.greedy import decode_rows
from saccade.train.api import train
from saccade.train.objectives.objectives import next_token_loss

FIXED_CONTEXT = [
    "reader.stack.reverse=false",
    "writer.stack.initial_state=predicted",
    "writer.stack.input_feeding=true",
]


def stack_states(hidden: Any) -> Tensor:
    """The states of all layers as one tensor (layers, h and cell state, D); (B, ...) for a batch."""
    return torch.stack([torch.stack(tuple(layer), -2) for layer in hidden], -3)


@check(
    2,
    "S3:24,100",
    "The first decoder state is predicted from the last encoder state, and the context is that state: c = h_T.",
    formula=r"c = h_T, \quad s_0 = \tanh(W c)",
    code=(InitialState,),
    recipes=("sutskever",),
    breaks=("context-is-the-mean", "context-of-padding", "initial-state-is-zero", "recurrence-over-padding"),
)
@torch.no_grad()
def context_is_the_last_state() -> CheckResult:
    model, copying = build_random("sutskever", FIXED_CONTEXT), build_random("sutskever")
    memory = model.read(BATCH)
    encodings = [read(model, ids, cell="lstm") for ids in SOURCES]
    states = [stack_states(predict_initial("lstm", model.writer.stack, one.states[-1])) for one in encodings]
    start = model.writer.start(memory, capacity=1)
    bare = model.writer.start(replace(memory, final=None), capacity=1)  # as of an encoder without a last state
    copied = copying.writer.start(copying.read(BATCH), capacity=1)
    last = [stack_states(read(copying, ids, cell="lstm", direction="backward").final) for ids in SOURCES]
    return build_result(
        expect_equal("default of writer.stack.context", RecurrentWriterStack().context, "last"),
        expect_near(
            "c: largest difference from h_T, with padding behind it",
            compare_rows(start.input_feed, [one.states[-1] for one in encodings]),
            0,
            within=1e-12,
        ),
        expect_near(
            "c, taken from all encoder states: difference from h_T",
            max_difference(bare.input_feed, start.input_feed),
            0,
            within=1e-12,
        ),
        expect_near(
            "s_0: difference from tanh(W c)", compare_rows(stack_states(start.hidden), states), 0, within=1e-12
        ),
        expect_near(
            "s_0 of Sutskever et al., a copy of the encoder's last states: difference",
            compare_rows(stack_states(copied.hidden), last),
            0,
            within=1e-12,
        ),
    )


@check(
    3,
    "S3:33",
    "The decoder computes s_t from y_(t-1), s_(t-1) and a fixed context c; it gets no other information on the source.",
    formula=r"s_t = g_U(y_{t-1}, s_{t-1}, c)",
    code=(RecurrentWriter, FixedContextRecurrence),
    recipes=("sutskever",),
    breaks=(
        "decoder-without-context",
        "decoder-forgets-its-state",
        "decoder-ignores-its-words",
        "upper-layers-skipped",
    ),
)
@torch.no_grad()
def one_fixed_context() -> CheckResult:
    model = build_random("sutskever", FIXED_CONTEXT)
    memory = model.read(BATCH)
    expected = []
    for ids, words in zip(SOURCES, INPUTS, strict=True):
        c = read(model, ids, cell="lstm").states[-1]
        expected.append(write(model, predict_initial("lstm", model.writer.stack, c), words, cell="lstm", context=c))
    whole = write_at_once(model, memory)
    other_last = replace(memory, final=tuple(tuple(part + 1 for part in layer) for layer in memory.final))
    return build_result(
        expect_near("logits: difference from the formula", compare_rows(whole, expected), 0, within=1e-10),
        expect_near(
            "the same, computed step by step: difference",
            compare_rows(write_stepwise(model, memory)[0], expected),
            0,
            within=1e-10,
        ),
        expect_equal(
            "change of the output when h_1 ... h_(T-1) change",
            max_difference(write_at_once(model, replace(memory, states=memory.states + 1)), whole),
            0.0,
        ),
        expect_at_least(
            "smallest change of a step's output when h_T changes",
            float((write_at_once(model, other_last) - whole)[0].abs().amax(-1).min()),
            1e-6,
        ),
    )


PAIRS = [
    ("we are eating bread", "estamos comiendo pan"),
    ("we are eating", "comemos"),
    ("they are drinking cold water", "ellos beben agua fría"),
    ("she is reading a book", "está leyendo un libro"),
]
PAIR_STEPS = 80


@check(
    4,
    "S3:46-70",
    "Generation starts with [START] and ends with [STOP]: we are eating bread -> estamos comiendo pan [STOP].",
    formula=r"y_0 = \mathrm{[START]}, \quad y_4 = \mathrm{[STOP]}",
    code=(shift_right, decode_rows, beam_search, train),
    recipes=("sutskever",),
    breaks=("targets-not-shifted", "targets-without-stop", "search-starts-with-stop", "decoder-forgets-its-state",
            "initial-state-is-zero", "decoder-ignores-its-words"),
)  # fmt: skip
def start_and_stop() -> CheckResult:
    run = train_on_pairs("sutskever", PAIRS, steps=PAIR_STEPS, dim=64, changes=["tokenizer.kind=words"])
    sources, targets = ([pair[side] for pair in PAIRS] for side in (0, 1))
    ids, untrained, words = run.tokenizers.target.encode(targets[0]), build_random("sutskever"), [12, 13, 14]
    with record_inputs(untrained.writer.embedding) as training:
        batch = Batch({"source": pad(SOURCES[:1]), "target": pad([[*words, END]])})
        next_token_loss(untrained, batch, torch.Generator())
    compared = []
    for name, decoding in (("greedy search", Decoding(beam=1)), ("beam search", Decoding(beam=3))):
        with record_inputs(run.model.writer.embedding) as steps:
            [[first]] = run.candidates(sources[:1], decoding=decoding)
        outputs = [one.text for [one] in run.candidates(sources, decoding=decoding)]
        compared += [
            expect_equal(f"{name}: outputs of the trained model", " / ".join(outputs), " / ".join(targets)),
            expect_equal(f"{name}: words before the model generates [STOP], of at most 28", len(first.ids), 3),
            expect_equal(f"{name}: first input of the decoder, [START]", str(steps[0][:1]), str([START])),
        ]
        if decoding.beam == 1:
            compared.append(
                expect_equal(f"{name}: inputs of the decoder", str(steps), str([[START], *([i] for i in ids[:3])]))
            )
    with torch.no_grad():
        state = untrained.writer.start(untrained.read(BATCH), capacity=1)
        starts = [untrained.writer.step(torch.tensor([[word]] * 2), state).logits for word in (START, END)]
    return build_result(
        expect_equal("tokens of the target, the last of which is [STOP]", f"{len(ids)}, {ids[-1]}", f"4, {END}"),
        expect_equal("inputs in training: [START] and the words", str(training), str([[START, *words]])),
        *compared,
        expect_at_least("change of the first logits with another input than [START]", max_difference(*starts), 1e-3),
    )


@contextmanager
def record_inputs(embedding: Any) -> Iterator[list[list[int]]]:
    """Yield a list that gets the token ids of the first row, each time that they are embedded."""
    found: list[list[int]] = []
    hook = embedding.register_forward_pre_hook(lambda module, args: found.append(args[0][0].tolist()))
    try:
        yield found
    finally:
        hook.remove()


@check(
    6,
    "S3:92",
    "Sequence to sequence learning (Sutskever et al. 2014) uses stacked LSTMs and reverses the source.",
    formula=r"(x_T, \dots, x_1) \to h_T \to (y_1, y_2, \dots)",
    code=(RecurrentStack, FixedContextRecurrence),
    recipes=("sutskever",),
    breaks=("source-not-reversed", "reversal-moves-padding", "upper-layers-skipped", "initial-state-is-zero",
            "cell-state-lost"),
)  # fmt: skip
@torch.no_grad()
def sutskever() -> CheckResult:
    model = build_random("sutskever")
    memory = model.read(BATCH)
    encodings = [read(model, ids, cell="lstm", direction="backward") for ids in SOURCES]
    expected = [write(model, one.final, ids, cell="lstm") for one, ids in zip(encodings, INPUTS, strict=True)]
    layers = [len(model.reader.stack.layers), len(model.writer.stack.recurrence.layers)]
    other = BATCH["source"].content.clone()
    other[:, 0] = 20
    change = (model.reader(other, BATCH["source"].mask).states - memory.states)[0].abs().amax(-1)
    return build_result(
        expect_equal("LSTM layers of encoder and decoder", str(layers), "[2, 2]"),
        expect_near(
            "encoder states: difference from stacked LSTMs that read from x_T to x_1",
            compare_rows(memory.states, [one.states for one in encodings]),
            0,
            within=1e-12,
        ),
        expect_near(
            "logits: difference from stacked LSTMs that start with the encoder's last states",
            compare_rows(write_at_once(model, memory), expected),
            0,
            within=1e-10,
        ),
        expect_near(
            "the same, computed step by step: difference",
            compare_rows(write_stepwise(model, memory)[0], expected),
            0,
            within=1e-10,
        ),
        expect_equal("states that another first word changes: only its own, the last one", int((change > 0).sum()), 1),
    )
