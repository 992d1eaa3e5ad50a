"""Beam search over a writer's `start/step/reorder`; the k rows of each of N sentences are adjacent in the state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END, START
from saccade.kernels.cpu.search_steps import TopCandidates
from saccade.predict.search.constraints import PhraseConstraints
from saccade.predict.search.filters import Rule, apply_rules
from saccade.predict.search.greedy import (
    FinishedHypotheses,
    MultiStep,
    ScorePenalties,
    SearchHypothesis,
    StepWriter,
    append_attention,
    best_tokens,
    compute_coverage_penalty,
    compute_length_penalty,
    log_softmax,
)
from saccade.predict.search.trace import is_tracing, record_step

NO_PENALTIES = ScorePenalties()


def beam_search(  # noqa: PLR0913  # the settings of a search are its parameters
    writer: StepWriter,
    state: State,
    *,
    limits: Int[Tensor, " N"],
    width: int,
    n_best: int = 1,
    rules: Sequence[Rule] = (),
    penalties: ScorePenalties = NO_PENALTIES,
    align: bool = False,
    multi_step: MultiStep | None = None,
    constraints: PhraseConstraints | None = None,
) -> list[list[SearchHypothesis]]:
    """Return the hypotheses of each sentence, best first: at least n_best, where that many exist.

    Each step keeps the best `width` candidates. Those that end with END are finished and free their rows for the next
    step, so that a beam of 1 is greedy search. A sentence is complete when no live row can still become one of its
    n_best. `limits` is the maximum number of tokens per sentence, END not counted; `rules` must enforce it. A coverage
    penalty needs `align`. With `constraints`, whose rule must be among the rules, they choose among the candidates.
    """
    live, finished = _LiveBeams.start(state, limits, n_best), FinishedHypotheses(limits.shape[0], penalties)
    longest = int(limits.max())
    while live.sequences.shape[1] <= longest + 1:
        taken = None if multi_step is None else live.take_multiple_steps(multi_step, width=width, rules=rules)
        best, parents, tokens = taken or live.step(
            writer, width=width, rules=rules, align=align, constraints=constraints
        )
        length, attention = live.sequences.shape[1], live.attention
        penalty_ahead = _max_length_penalty(limits[live.sentences], length=length, alpha=penalties.alpha)
        coverage_bonus = (
            penalties.beta * compute_coverage_penalty(attention)[parents]
            if penalties.beta and attention is not None
            else None
        )
        ends, live.scores, live.pool, completed = finish_step(
            best,
            tokens,
            live.pool,
            penalty_now=compute_length_penalty(length, penalties.alpha),
            penalty_ahead=penalty_ahead,
            bonus=coverage_bonus,
        )
        some_end, some_complete = torch.stack((ends.max() > -torch.inf, completed.any())).tolist()
        if some_end:
            live.add_finished(ends, parents, finished)
        if some_complete:
            live_sentences = (~completed).nonzero()[:, 0]
            if not len(live_sentences):
                break
            live.keep_sentences(live_sentences)
            parents, tokens = parents[live_sentences], tokens[live_sentences]
        live.extend_sequences(parents.flatten(), tokens.flatten())
    return finished.to_sorted_lists()


@dataclass
class _LiveBeams:
    """The rows that are still extended: k for each of N sentences."""

    state: State
    sentences: Int[Tensor, " N"]
    sequences: Int[Tensor, "R t"]
    scores: Float[Tensor, "N k"]
    pool: Float[Tensor, "N n"]  # best scores of finished hypotheses, best first
    attention: Tensor | None = None

    @classmethod
    def start(cls, state: State, limits: Int[Tensor, " N"], n_best: int) -> "_LiveBeams":
        n, device = limits.shape[0], limits.device
        sequences, scores = torch.full((n, 1), START, device=device), torch.zeros(n, 1, device=device)
        pool = torch.full((n, n_best), -torch.inf, device=device)
        return cls(state, torch.arange(n, device=device), sequences, scores, pool)

    def take_multiple_steps(self, multi_step: MultiStep, *, width: int, rules: Sequence[Rule]) -> TopCandidates | None:
        """Take as many steps as one call can; return the candidates of the last one, or None if the writer has to step.

        Takes one step at a time once a sentence has enough finished hypotheses to be completed.
        """
        if self.scores.shape[1] != width:
            return None
        single = bool(self.pool[:, -1].max() != -torch.inf)
        taken = multi_step.take_beams(self.state, self.sequences, self.scores, rules, single=single)
        if taken is None:
            return None
        steps, self.state = taken
        self.sequences, self.scores = torch.cat((self.sequences[steps.roots], steps.history), 1), steps.scores
        return steps.best

    def step(
        self,
        writer: StepWriter,
        *,
        width: int,
        rules: Sequence[Rule],
        align: bool,
        constraints: PhraseConstraints | None = None,
    ) -> TopCandidates:
        """Take one step with the writer; return the candidates, see `_select_candidates`."""
        step = writer.step(self.sequences[:, -1:], self.state, align=align)
        self.attention, self.state = append_attention(self.attention, step.weights), step.state
        log_probs = log_softmax(step.logits)
        apply_rules(log_probs, rules, self.sequences, self.sentences.repeat_interleave(self.scores.shape[1]))
        best, parents, tokens = _select_candidates(log_probs, self.scores, width)
        if constraints is not None:
            best, parents, tokens = constraints.select(
                log_probs, self.scores, self.sequences, self.sentences, (best, parents, tokens)
            )
        if is_tracing():
            record_step(self.sequences, log_probs + self.scores.reshape(-1, 1), parents, tokens)
        return best, parents, tokens

    def add_finished(
        self, ends: Float[Tensor, "N c"], parents: Int[Tensor, "N c"], finished: FinishedHypotheses
    ) -> None:
        """Add the candidates that end with END to `finished`."""
        sentence, rank = ends.isfinite().nonzero(as_tuple=True)
        rows, attention = parents[sentence, rank], self.attention
        row_attention = None if attention is None else attention[rows]
        finished.add(self.sentences[sentence], ends[sentence, rank], self.sequences[rows], row_attention)

    def keep_sentences(self, kept: Int[Tensor, " n"]) -> None:
        """Drop the other sentences; their rows disappear with the next `extend_sequences`."""
        self.sentences, self.pool, self.scores = self.sentences[kept], self.pool[kept], self.scores[kept]

    def extend_sequences(self, parents: Int[Tensor, " C"], tokens: Int[Tensor, " C"]) -> None:
        """Append these tokens, each to its parent row, and reorder the state accordingly."""
        self.sequences = torch.cat((self.sequences[parents], tokens[:, None]), 1)
        self.attention = None if self.attention is None else self.attention[parents]
        self.state = self.state.reorder(parents)


def _select_candidates(log_probs: Float[Tensor, "R V"], scores: Float[Tensor, "N k"], width: int) -> TopCandidates:
    """Return the best `width` continuations per sentence: log-probability, parent row, token."""
    (n, k), size = scores.shape, log_probs.shape[1]
    values, tokens = best_tokens(log_probs, width)
    values = (values + scores.reshape(-1, 1)).reshape(n, -1)
    # Ties: the earlier row first, then the smaller token.
    beam = torch.arange(k, device=values.device).repeat_interleave(tokens.shape[1])
    position, order = (beam * size + tokens.reshape(n, -1)).sort(dim=1)
    values, order = select_best(values.gather(1, order), width)
    position = position.gather(1, order)
    first_row = torch.arange(n, device=values.device)[:, None] * k
    return values, first_row + position // size, position % size


def _max_length_penalty(limits: Int[Tensor, " N"], *, length: int, alpha: float) -> Float[Tensor, " N"]:
    """Return the largest future length penalty: at the limit for alpha > 0, at the next length for alpha < 0."""
    max_lengths = limits + 1.0
    return torch.maximum(
        compute_length_penalty(max_lengths, alpha),
        compute_length_penalty(torch.full_like(max_lengths, length + 1), alpha),
    )


# ---- Bookkeeping of one step, in tensors only. The search on static buffers (engines/static_search.py) shares it,
# and the kernels in Triton (kernels/triton/search.py) and C (kernels/cpu/search_steps.c) are tested against it.


class BeamStep(NamedTuple):
    """Result of the bookkeeping of one step of beam search."""

    ends: Float[Tensor, "N k"]  # log-probabilities of hypotheses that end at this step, -inf for all others
    scores: Float[Tensor, "N k"]  # log-probabilities of live rows, -inf for those that ended
    pool: Float[Tensor, "N n"]  # best scores of finished hypotheses, best first
    completed: Bool[Tensor, " N"]  # sentences in which no live row can still become one of the best n


def select_best(values: Float[Tensor, "N c"], count: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """Return the best candidates of each sentence and their indices, best first; ties by index."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :count], order[:, :count]


def finish_step(
    values: Float[Tensor, "N k"],
    tokens: Int[Tensor, "N k"],
    pool: Float[Tensor, "N n"],
    *,
    penalty_now: Tensor | float,
    penalty_ahead: Float[Tensor, " N"],
    bonus: Float[Tensor, "N k"] | None = None,
    n_best_index: Int[Tensor, " 1"] | None = None,
    done: Bool[Tensor, " N"] | None = None,
) -> BeamStep:
    """Finish the candidates whose token is END and merge their scores into the pool.

    Log-probabilities only decrease, so the best score that a live row can reach is its own divided by the largest
    future penalty. `n_best_index` is the index in the pool that must be filled for completion, by default the last;
    sentences that are `done` finish nothing. Nothing here synchronizes with the device.
    """
    ended = tokens == END
    ends = torch.where(ended if done is None else ended & ~done[:, None], values, -torch.inf)
    scores = torch.where(ended, -torch.inf, values)
    finished_scores = ends / penalty_now if bonus is None else ends / penalty_now + bonus
    pool = torch.cat((pool, finished_scores), 1).topk(pool.shape[1]).values
    best = scores.max(1).values
    worst_kept = pool[:, -1] if n_best_index is None else pool.index_select(1, n_best_index)[:, 0]
    return BeamStep(ends, scores, pool, (worst_kept >= best / penalty_ahead) | (best == -torch.inf))
