"""Greedy search and sampling over `start/step/reorder`, and what beams share with them: they know no more of a writer.

R rows are in the state; a row belongs to sentence rows[r]. Whatever rules forbid, log-probabilities are those of the
model. Length counts END, as in the sum of log-probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import END, START
from saccade.kernels.cpu.search_steps import Steps
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import Step
from saccade.predict.search.filters import Rule, apply_rules
from saccade.predict.search.trace import listened, tell

Chooser = Callable[[Tensor], Tensor]  # log-probabilities (R, V) -> tokens (R,)
BLOCK = 128  # tokens that are searched together
FEW_BLOCKS = 16  # so many are searched at once
FEW = 2**15  # and so many numbers: maxima would take longer to begin than a search to end


class Writer(Protocol):
    """All that a search knows of a writer, once it has a state."""

    @property
    def step(self) -> Callable[..., Step]:
        """step(inputs (R, n), state, *, align=False); each writer takes states of the type that it returns."""
        ...


class Decoder(Writer, Protocol):
    """A writer from its first token on: a model's own, or several things that have a say together."""

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> State: ...


class DecodableModel(Protocol):
    """What decoding knows of a model or an ensemble."""

    @property
    def writer(self) -> Any: ...

    @property
    def ctc(self) -> Any: ...

    def read(self, batch: Batch) -> Any: ...


class MultiStep(Protocol):
    """Takes several steps of a search in one call; None where the next step has to be taken by the writer."""

    def take_greedy(
        self, state: State, written: Int[Tensor, "R t"], log_probs: Float[Tensor, " R"], rules: Sequence[Rule]
    ) -> tuple[Int[Tensor, "R k"], Float[Tensor, " R"], State] | None:
        """The next tokens of all rows up to the first END, sums of log-probabilities, and the state behind them."""
        ...

    def take_beams(
        self,
        state: State,
        written: Int[Tensor, "R t"],
        scores: Float[Tensor, "N k"],
        rules: Sequence[Rule],
        *,
        single: bool,
    ) -> tuple[Steps, State] | None:
        """Steps of beam search up to one in which an output ends, or a `single` one, and the state behind them."""
        ...


@dataclass(frozen=True)
class Found:
    """One finished output: ids without END, the sum of log-probabilities with it, and its score."""

    ids: list[int]
    log_prob: float
    score: float
    alignment: list[list[float]] | None  # one row of S weights for each id


def sort_outputs(outputs: list[Found]) -> list[Found]:
    """Best first; of equal ones the shorter, and then the smaller."""
    return sorted(outputs, key=lambda item: (-item.score, len(item.ids), item.ids))


class Price(NamedTuple):
    """What enters the score of an output beside its log-probability (Wu et al. 2016, equation 14)."""

    alpha: float = 0.0  # of its length
    beta: float = 0.0  # of input that was not attended to


def penalty(length: Tensor | float, alpha: float) -> Any:
    """((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14)."""
    return ((5 + length) / 6) ** alpha


def coverage(maps: Float[Tensor, "R t S"]) -> Float[Tensor, " R"]:
    """Sum over the source of log(min(sum of its weights, 1)) (Wu et al. 2016, equation 14).

    Padding gets no weight at all, and is left out by that.
    """
    seen = maps.sum(1)
    return torch.where(seen > 0, seen.clamp(max=1).log(), 0.0).sum(-1)


# ---- one row at a time: greedy and sampling


def greedy(log_probs: Float[Tensor, "R V"]) -> Int[Tensor, " R"]:
    return best_tokens(log_probs, 1)[1][:, 0]


def sampling(shapers: Sequence[Callable[[Tensor], Tensor]], generator: torch.Generator) -> Chooser:
    """Draws from the distribution that the shapers leave."""

    def choose(logits: Tensor) -> Tensor:
        for shape in shapers:
            logits = shape(logits)
        # argmax of p / Exp(1) is a draw from p: unlike multinomial, it never waits for the device.
        noise = torch.empty_like(logits).exponential_(generator=generator)
        return (logits.softmax(-1) / noise).argmax(-1)

    return choose


def write_rows(  # noqa: PLR0913  # the settings of a search are its parameters
    writer: Writer,
    state: State,
    *,
    rows: Int[Tensor, " R"],
    choose: Chooser,
    rules: Sequence[Rule] = (),
    alpha: float = 0.0,
    align: bool = False,
    scored: bool = True,
    multi_step: MultiStep | None = None,
) -> list[list[Found]]:
    """One token for each row at each step, until all have written END; the outputs of each sentence, best first.

    Where they need not be `scored`, log-probabilities are 0, or NaN where the model's are: then nothing is normalised.
    `multi_step` is for greedy search without `align`.
    """
    finished = Finished(int(rows.max()) + 1, Price(alpha))
    written, maps = torch.full((rows.shape[0], 1), START, device=rows.device), None
    log_probs = torch.zeros(rows.shape[0], device=rows.device)
    while rows.shape[0]:
        run = None if multi_step is None else multi_step.take_greedy(state, written, log_probs, rules)
        if run is None:
            step = writer.step(written[:, -1:], state, align=align)
            maps, state = extend(maps, step.weights), step.state
            tokens, log_probs = chosen(step.logits, log_probs, written, rows, choose=choose, rules=rules, scored=scored)
        else:
            several, sums, state = run
            written, tokens = torch.cat((written, several[:, :-1]), 1), several[:, -1:]
            log_probs = sums if scored else log_probs
        ended = tokens[:, 0] == END
        if ended.any():
            finished.add(rows[ended], log_probs[ended], written[ended], None if maps is None else maps[ended])
            stay = (~ended).nonzero()[:, 0]
            rows, log_probs, tokens, written = rows[stay], log_probs[stay], tokens[stay], written[stay]
            maps = None if maps is None else maps[stay]
            state = state.reorder(stay) if len(stay) else state
        written = torch.cat((written, tokens), 1)
    return finished.sentences_sorted()


def chosen(
    logits: Float[Tensor, "R V"],
    log_probs: Float[Tensor, " R"],
    written: Int[Tensor, "R t"],
    rows: Int[Tensor, " R"],
    *,
    choose: Chooser,
    rules: Sequence[Rule],
    scored: bool,
) -> tuple[Int[Tensor, "R 1"], Float[Tensor, " R"]]:
    """The next token of each row, and its log-probability in the sums."""
    each = log_softmax(logits) if scored else logits.float()
    tokens = choose(apply_rules(each, rules, written, rows))[:, None]
    if listened():
        tell(written, log_probs[:, None] + each, torch.arange(len(tokens)), tokens)
    return tokens, log_probs + each.gather(1, tokens)[:, 0] * float(scored)


def log_softmax(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Log-probabilities, in the place of float32 logits: memory that is new costs more than the work."""
    logits = logits.float()
    return torch.log_softmax(logits, -1, out=logits)


def best_tokens(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R c"], Int[Tensor, "R c"]]:
    """The best `count` of each row and their tokens, in no order; a single one is the first of equal ones.

    They stand in the blocks with the best maxima, and on a CPU maxima take a twentieth of the time of a search.
    """
    size, blocks = log_probs.shape[1], log_probs.shape[1] // BLOCK
    if log_probs.device.type != "cpu" or blocks <= max(count, FEW_BLOCKS) or log_probs.numel() <= FEW:
        return _best(log_probs, min(count, size))
    end = blocks * BLOCK
    tops = log_probs[:, :end].unflatten(1, (blocks, BLOCK)).amax(-1)
    first = _best(tops, count)[1] * BLOCK
    places = (first[..., None] + torch.arange(BLOCK)).flatten(1)
    if end < size:
        places = torch.cat((places, torch.arange(end, size).expand(len(places), -1)), 1)
    values, at = _best(log_probs.gather(1, places), count)
    return values, places.gather(1, at)


def _best(x: Float[Tensor, "R n"], count: int) -> tuple[Float[Tensor, "R c"], Int[Tensor, "R c"]]:
    return x.max(1, keepdim=True) if count == 1 else x.topk(count, sorted=False)


# ---- what is finished


def extend(maps: Tensor | None, weights: Float[Tensor, "R S"] | None) -> Float[Tensor, "R t S"] | None:
    """The weights of all steps so far, row by row."""
    if weights is None:
        return None
    return weights[:, None] if maps is None else torch.cat((maps, weights[:, None]), 1)


@dataclass
class Finished:
    """Finished outputs, kept on the device until all are there."""

    sentences: int
    price: Price
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = field(default_factory=list)

    def add(
        self, rows: Int[Tensor, " f"], log_probs: Float[Tensor, " f"], written: Int[Tensor, "f t"], maps: Tensor | None
    ) -> None:
        self.steps.append((rows, log_probs, written, maps))

    def sentences_sorted(self) -> list[list[Found]]:
        """The outputs of each sentence, best first; of equal ones the earlier and then the smaller."""
        outputs: list[list[Found]] = [[] for _ in range(self.sentences)]
        for rows, log_probs, written, maps in self.steps:
            weights = [None] * len(rows) if maps is None else maps[:, :-1].tolist()
            alpha, beta = self.price
            missed = [0.0] * len(rows) if maps is None or not beta else (beta * coverage(maps)).tolist()
            scale = penalty(written.shape[1], alpha)
            found = zip(rows.tolist(), log_probs.tolist(), missed, written[:, 1:].tolist(), weights, strict=True)
            for row, log_prob, miss, ids, weight in found:
                outputs[row].append(Found(ids, log_prob, log_prob / scale + miss, weight))
        return [sort_outputs(group) for group in outputs]
