"""The reference search over a writer's steps: greedy search, sampling or beam search, as a request asks."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END, START
from saccade.predict.search.beam import beam_search
from saccade.predict.search.filters import apply_rules
from saccade.predict.search.greedy import (
    AutoregressiveWriter,
    Chooser,
    DecodableModel,
    MultiStep,
    ScorePenalties,
    SearchHypothesis,
    StepWriter,
    build_sampler,
    choose_best,
    decode_rows,
    log_softmax,
)
from saccade.predict.search.joint import add_ctc
from saccade.predict.search.prompted import PromptedWriter
from saccade.predict.search.request import Request
from saccade.predict.search.shallow_fusion import FusedWriter


def run_search(
    model: DecodableModel, request: Request, multi_step: MultiStep | None = None
) -> list[list[SearchHypothesis]]:
    """Return the n_best hypotheses of each row; `multi_step` takes several steps in one call where it can."""
    decoding, limits = request.decoding, torch.tensor(request.limits, device=request.device)
    writer, state = start_writer(model, request)
    constraints, alpha = request.make_constraints(), decoding.length_penalty
    rules = request.make_rules(limits, constraints)
    if decoding.beam > 1 and not decoding.sample:
        hypotheses = beam_search(
            writer, state, limits=limits, width=decoding.beam, n_best=decoding.n_best, rules=rules,
            penalties=ScorePenalties(alpha, decoding.coverage_penalty), multi_step=multi_step,
            align=request.align or decoding.coverage_penalty > 0, constraints=constraints,
        )  # fmt: skip
        best = [outputs[: decoding.n_best] for outputs in hypotheses]
        return best if request.align else [[replace(item, alignment=None) for item in outputs] for outputs in best]
    sentence_ids = torch.arange(len(limits), device=limits.device)
    if decoding.sample and decoding.n_best > 1:
        sentence_ids = sentence_ids.repeat_interleave(decoding.n_best)
        state = state.reorder(sentence_ids)
    return decode_rows(
        writer, state, sentence_ids=sentence_ids, choose=make_chooser(request), rules=rules, alpha=alpha,
        align=request.align, multi_step=multi_step,
        scored=request.scored or decoding.n_best > 1,  # n_best outputs are sorted by score
    )  # fmt: skip


def stream_tokens(model: DecodableModel, request: Request) -> Iterator[int]:
    """Yield the tokens of a single output as soon as each is chosen; the same tokens as `run_search`."""
    limits = torch.tensor(request.limits, device=request.device)
    writer, state = start_writer(model, request)
    rules, sentence_ids = request.make_rules(limits), torch.zeros(1, dtype=torch.long, device=limits.device)
    choose, sequence = make_chooser(request), torch.full((1, 1), START, device=limits.device)
    while True:
        step = writer.step(sequence[:, -1:], state)
        state = step.state
        token: Tensor = choose(apply_rules(log_softmax(step.logits), rules, sequence, sentence_ids))
        if int(token) == END:
            return
        yield int(token)
        sequence = torch.cat((sequence, token[:, None]), 1)


def start_writer(model: DecodableModel, request: Request) -> tuple[StepWriter, State]:
    """Return the writer, with fusion if requested, and its state before the first output token."""
    decoding, max_length = request.decoding, max(request.limits)
    if request.prompts is not None:
        prompted = PromptedWriter(
            model.writer, repetition=decoding.repetition_penalty, frequency=decoding.frequency_penalty
        )
        capacity = request.prompts.shape[1] + max_length
        return prompted, prompted.start(model.read(request.source), request.prompts, capacity=capacity)
    writer = build_writer(model, request)
    return writer, writer.start(model.read(request.source), capacity=max_length + 1, rows=len(request.limits))


def build_writer(model: DecodableModel, request: Request) -> AutoregressiveWriter:
    """Return the writer of a model, combined with its CTC head and a language model if these have a weight."""
    writer = add_ctc(model, request.decoding.ctc_weight)
    return writer if request.fusion is None else FusedWriter(writer, *request.fusion)


def make_chooser(request: Request) -> Chooser:
    """Return the function that chooses the next token: the most probable one, or a sample."""
    if not request.decoding.sample:
        return choose_best
    assert request.generator is not None, "sampling needs a generator"
    return build_sampler(request.make_warpers(), request.generator)
