"""One batch decoded as `[predict]` of the recipe says: the one place where its settings meet search and filters."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.schema import Decoding
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import END, PAD, START
from saccade.errors import SaccadeError
from saccade.predict.engines import fill_graphs, graphs
from saccade.predict.search import fill, filters
from saccade.predict.search.beam import beam_search
from saccade.predict.search.filters import Rule, apply_rules
from saccade.predict.search.fused import writer_of
from saccade.predict.search.greedy import Chooser, Found, Price, greedy, log_softmax, sampling, write_rows
from saccade.predict.search.prompted import PromptedWriter
from saccade.predict.search.trace import listened

SHORTEST = 50  # tokens that an output may have, however short its source: nine words may ask for 48 actions


def decode(
    model: Any,
    batch: Batch,
    *,
    limits: Sequence[int],
    decoding: Decoding,
    prefix: Sequence[int] = (),
    generator: torch.Generator | None = None,
    align: bool = False,
    scored: bool = True,
) -> list[list[Found]]:
    """The n_best outputs of each row; `limits` as `length_limits` gives them; `scored` as in `write_rows`."""
    if fill.fills(model.writer):
        fill.check_filling(decoding, prefix=prefix)
        return decode_filled(model, batch, limits, decoding, align=align)
    fill.check_stepwise(decoding)
    check_without_prompt(decoding)
    writer = writer_of(model, decoding)
    if writer is model.writer and graphs.suits(model, decoding, align=align or listened()):
        try:
            return decode_fixed(model, batch, limits, decoding, prefix, generator)
        except Exception as error:  # whatever a GPU or its compiler cannot do, the plain search can
            graphs.give_up(model, error)
    device = batch["source"].content.device
    most = torch.tensor(limits, device=device)
    state = writer.start(model.read(batch), capacity=max(limits) + 1, rows=len(limits))
    rules = make_rules(decoding, most, prefix=prefix)
    return searched(
        writer, state, limits=most, decoding=decoding, rules=rules, generator=generator, align=align, scored=scored
    )


def complete(
    model: Any,
    prompts: Int[Tensor, "N n"],
    *,
    limits: Sequence[int],
    decoding: Decoding,
    prefix: Sequence[int] = (),
    generator: torch.Generator | None = None,
    stops: Rule | None = None,
) -> list[list[Found]]:
    """The n_best outputs after each of the prompts, which are of one length and begin with START.

    `limits` are tokens after the prompt, END not counted; `stops` is the rule by which outputs end early.
    """
    fill.check_stepwise(decoding)
    if graphs.suits(model, decoding, align=listened()):
        try:
            found = graphs.decode_fixed(
                model.writer, None, limits=limits, decoding=decoding, prefix=prefix, shapers=make_shapers(decoding),
                generator=generator, prompt=prompts,
            )  # fmt: skip
            return [outputs[: decoding.n_best] for outputs in found]
        except Exception as error:  # as above
            graphs.give_up(model, error)
    most = torch.tensor(limits, device=prompts.device)
    writer, state = begun(model, prompts, decoding, capacity=prompts.shape[1] + max(limits))
    rules = [*make_rules(decoding, most, prefix=prefix), *([] if stops is None else [stops])]
    return searched(
        writer, state, limits=most, decoding=decoding, rules=rules, generator=generator, align=False, scored=True
    )


def one_by_one(
    model: Any,
    prompt: Int[Tensor, "1 n"],
    *,
    limit: int,
    decoding: Decoding,
    prefix: Sequence[int],
    generator: torch.Generator | None,
) -> Iterator[int]:
    """The tokens of a single output, each as soon as it is chosen; they are those of `complete`."""
    most = torch.tensor([limit], device=prompt.device)
    writer, state = begun(model, prompt, decoding, capacity=prompt.shape[1] + limit)
    rules, row = make_rules(decoding, most, prefix=prefix), torch.zeros(1, dtype=torch.long, device=prompt.device)
    choose = chooser(decoding, generator)
    written = torch.full((1, 1), START, device=prompt.device)
    while True:
        step = writer.step(written[:, -1:], state)
        state = step.state
        token = choose(apply_rules(log_softmax(step.logits), rules, written, row))
        if int(token) == END:
            return
        yield int(token)
        written = torch.cat((written, token[:, None]), 1)


def begun(model: Any, prompts: Tensor, decoding: Decoding, *, capacity: int) -> tuple[PromptedWriter, Any]:
    """A writer that has read prompts."""
    writer = PromptedWriter(model.writer, repetition=decoding.repetition, frequency=decoding.frequency)
    return writer, writer.start(model.read(Batch({})), prompts, capacity=capacity)


def chooser(decoding: Decoding, generator: torch.Generator | None) -> Chooser:
    if not decoding.sample:
        return greedy
    assert generator is not None, "sampling needs a generator"
    return sampling(make_shapers(decoding), generator)


def searched(
    writer: Any,
    state: Any,
    *,
    limits: Int[Tensor, " N"],
    decoding: Decoding,
    rules: Sequence[Rule],
    generator: torch.Generator | None,
    align: bool,
    scored: bool,
) -> list[list[Found]]:
    """What search, sampling or beams find from a state on."""
    alpha = decoding.length_penalty
    if decoding.beam > 1 and not decoding.sample:
        found = beam_search(
            writer, state, limits=limits, width=decoding.beam, n_best=decoding.n_best, rules=rules,
            price=Price(alpha, decoding.coverage), align=align or decoding.coverage > 0,
        )  # fmt: skip
        best = [outputs[: decoding.n_best] for outputs in found]
        return best if align else [[replace(item, alignment=None) for item in outputs] for outputs in best]
    rows = torch.arange(len(limits), device=limits.device)
    if decoding.sample and decoding.n_best > 1:
        rows = rows.repeat_interleave(decoding.n_best)
        state = state.reorder(rows)
    scored = scored or decoding.n_best > 1  # of which the best is asked for
    return write_rows(
        writer, state, rows=rows, choose=chooser(decoding, generator), rules=rules, alpha=alpha, align=align,
        scored=scored,
    )  # fmt: skip


def check_without_prompt(decoding: Decoding) -> None:
    """Refuses what is said of an output after a prompt."""
    plain = Decoding()
    for name in ("stop", "slide", "repetition", "frequency"):
        if (given := getattr(decoding, name)) != getattr(plain, name):
            raise SaccadeError(
                f'{name} is for models that go on from a prompt (task = "write"), got {name} = {given!r}; leave it out'
            )


def decode_fixed(
    model: Any,
    batch: Batch,
    limits: Sequence[int],
    decoding: Decoding,
    prefix: Sequence[int],
    generator: torch.Generator | None,
) -> list[list[Found]]:
    """The same on CUDA, without the host."""
    found = graphs.decode_fixed(
        model.writer, model.read(batch), limits=limits, decoding=decoding, prefix=prefix,
        shapers=make_shapers(decoding), generator=generator,
    )  # fmt: skip
    return [outputs[: decoding.n_best] for outputs in found]


def decode_filled(
    model: Any, batch: Batch, limits: Sequence[int], decoding: Decoding, *, align: bool
) -> list[list[Found]]:
    """The same by a writer that writes all tokens at once."""
    source, wanted, made, looks = batch["source"], fill.Wanted.of(decoding), None, None
    if not align and fill_graphs.suits(model):
        try:
            made = fill_graphs.fill_fixed(model, source, limits=limits, wanted=wanted)
        except Exception as error:  # as above
            graphs.give_up(model, error)
    if made is None:
        made, looks = fill.decode_plainly(model, source, limits=limits, wanted=wanted, align=align)
    return fill.outputs(made, looks, sentences=len(limits), decoding=decoding)


def copies(model: Any, decoding: Decoding) -> int:
    """Rows that one sentence takes in the batch."""
    if fill.fills(model.writer):
        return fill.Wanted.of(decoding).lengths
    return decoding.n_best if decoding.sample else decoding.beam


def make_rules(decoding: Decoding, limits: Tensor, *, prefix: Sequence[int] = ()) -> list[Rule]:
    """Later rules win: what must begin so does, and what must end does."""
    rules = [filters.never((PAD, START)) if decoding.replace_unknown else filters.never()]
    if decoding.min_length:
        rules.append(filters.min_length(decoding.min_length))
    if decoding.no_repeat:
        rules.append(filters.no_repeat(decoding.no_repeat))
    if prefix:
        rules.append(filters.forced_prefix([prefix] * len(limits), device=limits.device))
    return [*rules, filters.max_length(limits)]


def make_shapers(decoding: Decoding) -> list[filters.Shaper]:
    shapers = []
    if decoding.temperature != 1.0:
        shapers.append(filters.temperature(decoding.temperature))
    if decoding.top_k:
        shapers.append(filters.top_k(decoding.top_k))
    if decoding.top_p < 1.0:
        shapers.append(filters.top_p(decoding.top_p))
    return shapers


def length_limits(lengths: Sequence[int], *, decoding: Decoding, longest: int, prefix: Sequence[int] = ()) -> list[int]:
    """How many tokens each output may have, END not counted, given the lengths of the sources and data.max_length."""
    room = longest - 1  # the model was trained on `longest` positions, END among them
    least = max(decoding.min_length, len(prefix))
    most = room if decoding.max_length is None else decoding.max_length
    if most > room:
        raise SaccadeError(
            f"max_length must be at most {room}, one less than data.max_length of the run, got {most}; lower it"
        )
    if least > most:
        raise SaccadeError(
            f"an output of at least {least} tokens was asked for (min_length = {decoding.min_length}, prefix of "
            f"{len(prefix)} tokens), but at most {most} are allowed; raise max_length or ask for less"
        )
    if decoding.max_length is not None:
        return [most] * len(lengths)
    return [min(most, max(least, SHORTEST, 2 * length + 20)) for length in lengths]
