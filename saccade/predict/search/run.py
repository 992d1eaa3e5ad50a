"""Search over a writer as a request asks: greedy search, sampling or beams. The reference of all engines."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END, START
from saccade.predict.search.beam import beam_search
from saccade.predict.search.filters import apply_rules
from saccade.predict.search.fused import FusedWriter
from saccade.predict.search.greedy import (
    Chooser,
    DecodableModel,
    Decoder,
    Found,
    MultiStep,
    Price,
    Writer,
    greedy,
    log_softmax,
    sampling,
    write_rows,
)
from saccade.predict.search.joint import with_ctc
from saccade.predict.search.prompted import PromptedWriter
from saccade.predict.search.request import Request


def run_search(model: DecodableModel, request: Request, multi_step: MultiStep | None = None) -> list[list[Found]]:
    """The n_best outputs of each row; `multi_step` takes several steps at once where it can."""
    decoding, limits = request.decoding, torch.tensor(request.limits, device=request.device)
    writer, state = start_writer(model, request)
    rules, alpha = request.make_rules(limits), decoding.length_penalty
    if decoding.beam > 1 and not decoding.sample:
        found = beam_search(
            writer, state, limits=limits, width=decoding.beam, n_best=decoding.n_best, rules=rules,
            price=Price(alpha, decoding.coverage), align=request.align or decoding.coverage > 0, multi_step=multi_step,
        )  # fmt: skip
        best = [outputs[: decoding.n_best] for outputs in found]
        return best if request.align else [[replace(item, alignment=None) for item in outputs] for outputs in best]
    rows = torch.arange(len(limits), device=limits.device)
    if decoding.sample and decoding.n_best > 1:
        rows = rows.repeat_interleave(decoding.n_best)
        state = state.reorder(rows)
    return write_rows(
        writer, state, rows=rows, choose=make_chooser(request), rules=rules, alpha=alpha, align=request.align,
        scored=request.scored or decoding.n_best > 1, multi_step=multi_step,  # of several the best is asked for
    )  # fmt: skip


def stream_tokens(model: DecodableModel, request: Request) -> Iterator[int]:
    """The tokens of a single output, each as soon as it is chosen; they are those of `run_search`."""
    limits = torch.tensor(request.limits, device=request.device)
    writer, state = start_writer(model, request)
    rules, row = request.make_rules(limits), torch.zeros(1, dtype=torch.long, device=limits.device)
    choose, written = make_chooser(request), torch.full((1, 1), START, device=limits.device)
    while True:
        step = writer.step(written[:, -1:], state)
        state = step.state
        token: Tensor = choose(apply_rules(log_softmax(step.logits), rules, written, row))
        if int(token) == END:
            return
        yield int(token)
        written = torch.cat((written, token[:, None]), 1)


def start_writer(model: DecodableModel, request: Request) -> tuple[Writer, State]:
    """A writer with whatever else has a say, and its state before the first token or behind the prompts."""
    decoding, longest = request.decoding, max(request.limits)
    if request.prompts is not None:
        prompted = PromptedWriter(model.writer, repetition=decoding.repetition, frequency=decoding.frequency)
        capacity = request.prompts.shape[1] + longest
        return prompted, prompted.start(model.read(request.source), request.prompts, capacity=capacity)
    writer = build_writer(model, request)
    return writer, writer.start(model.read(request.source), capacity=longest + 1, rows=len(request.limits))


def build_writer(model: DecodableModel, request: Request) -> Decoder:
    """The writer of a model, together with its CTC head and a language model where these have a weight."""
    writer = with_ctc(model, request.decoding.ctc)
    return writer if request.fusion is None else FusedWriter(writer, *request.fusion)


def make_chooser(request: Request) -> Chooser:
    if not request.decoding.sample:
        return greedy
    assert request.generator is not None, "sampling needs a generator"
    return sampling(request.make_shapers(), request.generator)
