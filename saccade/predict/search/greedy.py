"""Greedy search and sampling over a writer's `start/step/reorder`, and what beam search shares with them.

The state has R rows; row r belongs to sentence sentence_ids[r]. Log-probabilities are the model's own, regardless of
rules. Lengths count END, as the sums of log-probabilities do.
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
from saccade.kernels.cpu.search_steps import BeamResult
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import Step
from saccade.predict.search.filters import Rule, apply_rules
from saccade.predict.search.trace import is_tracing, record_step

Chooser = Callable[[Tensor], Tensor]  # log-probabilities (R, V) -> tokens (R,)
TOP_K_BLOCK_SIZE = 128  # vocabulary entries per block of the blockwise top-k
MIN_TOP_K_BLOCKS = 16  # with fewer blocks, one top-k over the row is faster
MIN_TOP_K_ELEMENTS = 2**15  # with fewer logits, too


class StepWriter(Protocol):
    """All that a search needs of a writer that has a state."""

    @property
    def step(self) -> Callable[..., Step]:
        """step(inputs (R, n), state, *, align=False) -> Step; the state is of the type that the writer returns."""
        ...


class AutoregressiveWriter(StepWriter, Protocol):
    """A writer that can start a state: a model's own, or a combination such as shallow fusion."""

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> State: ...


class DecodableModel(Protocol):
    """All that decoding needs of a model or an ensemble."""

    @property
    def writer(self) -> Any: ...

    @property
    def ctc(self) -> Any: ...

    def read(self, batch: Batch) -> Any: ...


class MultiStep(Protocol):
    """Takes several steps of a search in one call; returns None where the writer has to take the next step."""

    def take_greedy(
        self, state: State, sequences: Int[Tensor, "R t"], log_probs: Float[Tensor, " R"], rules: Sequence[Rule]
    ) -> tuple[Int[Tensor, "R k"], Float[Tensor, " R"], State] | None:
        """Return the next tokens of all rows up to the first END, sums of log-probabilities, and the new state."""
        ...

    def take_beams(
        self,
        state: State,
        sequences: Int[Tensor, "R t"],
        scores: Float[Tensor, "N k"],
        rules: Sequence[Rule],
        *,
        single: bool,
    ) -> tuple[BeamResult, State] | None:
        """Take steps of beam search until an output ends, or a `single` one; return them and the new state."""
        ...


@dataclass(frozen=True)
class SearchHypothesis:
    """One finished output: ids without END, the sum of log-probabilities including END, and its score."""

    ids: list[int]
    log_prob: float
    score: float
    alignment: list[list[float]] | None  # one row of S attention weights for each id


def sort_hypotheses(hypotheses: list[SearchHypothesis]) -> list[SearchHypothesis]:
    """Sort by score, best first; ties by length and then by ids."""
    return sorted(hypotheses, key=lambda item: (-item.score, len(item.ids), item.ids))


class ScorePenalties(NamedTuple):
    """Terms of the score besides the log-probability (Wu et al. 2016, equation 14)."""

    alpha: float = 0.0  # exponent of the length penalty
    beta: float = 0.0  # weight of the coverage penalty


def compute_length_penalty(length: Tensor | float, alpha: float) -> Any:
    """Return ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14)."""
    return ((5 + length) / 6) ** alpha


def compute_coverage_penalty(attention: Float[Tensor, "R t S"]) -> Float[Tensor, " R"]:
    """Sum log(min(attention weight that a source position received, 1)) over the source (Wu et al. 2016, equation 14).

    Positions without any weight, such as padding, are skipped.
    """
    received = attention.sum(1)
    return torch.where(received > 0, received.clamp(max=1).log(), 0.0).sum(-1)


# ---- one hypothesis per row: greedy search and sampling


def choose_best(log_probs: Float[Tensor, "R V"]) -> Int[Tensor, " R"]:
    """Return the most probable token of each row."""
    return best_tokens(log_probs, 1)[1][:, 0]


def build_sampler(warpers: Sequence[Callable[[Tensor], Tensor]], generator: torch.Generator) -> Chooser:
    """Return a function that samples from the distribution left by the warpers."""

    def choose(logits: Tensor) -> Tensor:
        for warp in warpers:
            logits = warp(logits)
        # argmax of p / Exp(1) is a sample from p; unlike torch.multinomial, it does not synchronize with the device.
        noise = torch.empty_like(logits).exponential_(generator=generator)
        return (logits.softmax(-1) / noise).argmax(-1)

    return choose


def decode_rows(  # noqa: PLR0913  # the settings of a search are its parameters
    writer: StepWriter,
    state: State,
    *,
    sentence_ids: Int[Tensor, " R"],
    choose: Chooser,
    rules: Sequence[Rule] = (),
    alpha: float = 0.0,
    align: bool = False,
    scored: bool = True,
    multi_step: MultiStep | None = None,
) -> list[list[SearchHypothesis]]:
    """Choose one token per row and step until every row has ended; return the hypotheses of each sentence, best first.

    Without `scored`, logits are not normalized, and log-probabilities are 0, or NaN where the model's are. `multi_step`
    is for greedy search without `align`.
    """
    finished = FinishedHypotheses(int(sentence_ids.max()) + 1, ScorePenalties(alpha))
    sequences, attention = torch.full((sentence_ids.shape[0], 1), START, device=sentence_ids.device), None
    log_probs = torch.zeros(sentence_ids.shape[0], device=sentence_ids.device)
    while sentence_ids.shape[0]:
        taken = None if multi_step is None else multi_step.take_greedy(state, sequences, log_probs, rules)
        if taken is None:
            step = writer.step(sequences[:, -1:], state, align=align)
            attention, state = append_attention(attention, step.weights), step.state
            tokens, log_probs = choose_tokens(
                step.logits, log_probs, sequences, sentence_ids, choose=choose, rules=rules, scored=scored
            )
        else:
            next_tokens, sums, state = taken
            sequences, tokens = torch.cat((sequences, next_tokens[:, :-1]), 1), next_tokens[:, -1:]
            log_probs = sums if scored else log_probs
        ended = tokens[:, 0] == END
        if ended.any():
            finished.add(
                sentence_ids[ended], log_probs[ended], sequences[ended], None if attention is None else attention[ended]
            )
            live = (~ended).nonzero()[:, 0]
            sentence_ids, log_probs = sentence_ids[live], log_probs[live]
            tokens, sequences = tokens[live], sequences[live]
            attention = None if attention is None else attention[live]
            state = state.reorder(live) if len(live) else state
        sequences = torch.cat((sequences, tokens), 1)
    return finished.to_sorted_lists()


def choose_tokens(
    logits: Float[Tensor, "R V"],
    log_probs: Float[Tensor, " R"],
    sequences: Int[Tensor, "R t"],
    sentence_ids: Int[Tensor, " R"],
    *,
    choose: Chooser,
    rules: Sequence[Rule],
    scored: bool,
) -> tuple[Int[Tensor, "R 1"], Float[Tensor, " R"]]:
    """Return the next token of each row, and the sums with its log-probability added."""
    scores = log_softmax(logits) if scored else logits.float()
    tokens = choose(apply_rules(scores, rules, sequences, sentence_ids))[:, None]
    if is_tracing():
        record_step(sequences, log_probs[:, None] + scores, torch.arange(len(tokens)), tokens)
    return tokens, log_probs + scores.gather(1, tokens)[:, 0] * float(scored)


def log_softmax(logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Compute log-probabilities in float32, in place where the logits are: allocation costs more than the work."""
    logits = logits.float()
    return torch.log_softmax(logits, -1, out=logits)


def best_tokens(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R c"], Int[Tensor, "R c"]]:
    """Return the `count` largest values of each row and their tokens, unsorted; a single one is the first of ties.

    On a CPU, only the blocks with the largest maxima are searched: maxima take a twentieth of the time of top-k.
    """
    size, blocks = log_probs.shape[1], log_probs.shape[1] // TOP_K_BLOCK_SIZE
    if (
        log_probs.device.type != "cpu"
        or blocks <= max(count, MIN_TOP_K_BLOCKS)
        or log_probs.numel() <= MIN_TOP_K_ELEMENTS
    ):
        return _select_largest(log_probs, min(count, size))
    end = blocks * TOP_K_BLOCK_SIZE
    maxima = log_probs[:, :end].unflatten(1, (blocks, TOP_K_BLOCK_SIZE)).amax(-1)
    starts = _select_largest(maxima, count)[1] * TOP_K_BLOCK_SIZE
    candidates = (starts[..., None] + torch.arange(TOP_K_BLOCK_SIZE)).flatten(1)
    if end < size:
        candidates = torch.cat((candidates, torch.arange(end, size).expand(len(candidates), -1)), 1)
    values, order = _select_largest(log_probs.gather(1, candidates), count)
    return values, candidates.gather(1, order)


def _select_largest(x: Float[Tensor, "R n"], count: int) -> tuple[Float[Tensor, "R c"], Int[Tensor, "R c"]]:
    return x.max(1, keepdim=True) if count == 1 else x.topk(count, sorted=False)


# ---- finished hypotheses


def append_attention(attention: Tensor | None, weights: Float[Tensor, "R S"] | None) -> Float[Tensor, "R t S"] | None:
    """Append the weights of one step to those of all steps so far, row by row."""
    if weights is None:
        return None
    return weights[:, None] if attention is None else torch.cat((attention, weights[:, None]), 1)


@dataclass
class FinishedHypotheses:
    """Collects finished hypotheses, on the device until all are finished."""

    sentences: int
    penalties: ScorePenalties
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = field(default_factory=list)

    def add(
        self,
        sentence_ids: Int[Tensor, " f"],
        log_probs: Float[Tensor, " f"],
        sequences: Int[Tensor, "f t"],
        attention: Tensor | None,
    ) -> None:
        self.steps.append((sentence_ids, log_probs, sequences, attention))

    def to_sorted_lists(self) -> list[list[SearchHypothesis]]:
        """Return the hypotheses of each sentence, best first; see `sort_hypotheses` for ties."""
        outputs: list[list[SearchHypothesis]] = [[] for _ in range(self.sentences)]
        for sentence_ids, log_probs, sequences, attention in self.steps:
            weights = [None] * len(sentence_ids) if attention is None else attention[:, :-1].tolist()
            alpha, beta = self.penalties
            coverage = (
                [0.0] * len(sentence_ids)
                if attention is None or not beta
                else (beta * compute_coverage_penalty(attention)).tolist()
            )
            scale = compute_length_penalty(sequences.shape[1], alpha)
            finished = zip(
                sentence_ids.tolist(), log_probs.tolist(), coverage, sequences[:, 1:].tolist(), weights, strict=True
            )
            for sentence, log_prob, bonus, ids, weight in finished:
                outputs[sentence].append(SearchHypothesis(ids, log_prob, log_prob / scale + bonus, weight))
        return [sort_hypotheses(group) for group in outputs]
