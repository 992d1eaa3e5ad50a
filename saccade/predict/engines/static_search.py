"""Greedy search, sampling and beam search on static buffers, without host synchronization.

`advance` takes all rows one step further, in place. N sentences have k rows each; greedy search and sampling have k =
1. Tokens and parents of every step are recorded and backtracked once, at the end. The bookkeeping is that of
`search/beam.py`; `advance_fast` does it in one Triton kernel, whose reference is `advance`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.tokenization.tokenizers import END
from saccade.kernels.next_token import DecodingConstraints, TopTokens
from saccade.layers.attention.static_cache import StaticState
from saccade.predict.search.beam import finish_step, select_best
from saccade.predict.search.greedy import SearchHypothesis, compute_length_penalty, sort_hypotheses


@dataclass(frozen=True)
class SearchHistory:
    """Tokens, parents and finished scores of every step, for all sentences of the batch."""

    tokens: Int[Tensor, "T N k"]
    parents: Int[Tensor, "T N k"]  # index of the parent beam within the sentence
    ends: Float[Tensor, "T N k"]  # log-probabilities of hypotheses that ended at this step, -inf for all others

    def to_hypotheses(
        self, *, steps: int, sentences: int, samples_per_row: int, alpha: float
    ) -> list[list[SearchHypothesis]]:
        """Return the hypotheses of each sentence and its samples, best first; see `sort_hypotheses` for ties."""
        tokens, parents, ends = (x[:steps, :sentences].cpu() for x in (self.tokens, self.parents, self.ends))
        hypotheses: list[list[SearchHypothesis]] = [[] for _ in range(sentences // samples_per_row)]
        # A greedy output with a NaN log-probability is kept, so that the error is reported; such a beam is not.
        single_beam = ends.shape[2] == 1
        times, rows, beams = (ends != -torch.inf if single_beam else ends.isfinite()).nonzero(as_tuple=True)
        ids = tokens[:, rows, 0].T if single_beam else _backtrack(tokens, parents.long(), (times, rows, beams))
        log_probs = ends[times, rows, beams].tolist()
        for row, time, log_prob, sequence in zip(rows.tolist(), times.tolist(), log_probs, ids.tolist(), strict=True):
            hypotheses[row // samples_per_row].append(
                SearchHypothesis(sequence[:time], log_prob, log_prob / compute_length_penalty(time + 1, alpha), None)
            )
        return [sort_hypotheses(group) for group in hypotheses]


def _backtrack(
    tokens: Int[Tensor, "T N k"], parents: Int[Tensor, "T N k"], ends: tuple[Tensor, Tensor, Tensor]
) -> Int[Tensor, "f T"]:
    """Follow parents from the step where each hypothesis ended back to the first, all hypotheses together."""
    times, rows, current = ends
    ids = torch.zeros(len(times), tokens.shape[0], dtype=tokens.dtype)
    for step in range(tokens.shape[0] - 1, -1, -1):
        ids[:, step] = tokens[step, rows, current]
        current = torch.where(times >= step, parents[step, rows, current], current)
    return ids


@dataclass(frozen=True)
class StaticSearch:
    """All tensors that a search keeps on the device."""

    state: StaticState
    rules: DecodingConstraints
    tokens: Int[Tensor, " R"]  # last token of each row
    sentences: Int[Tensor, " N"]  # index of each sentence in the batch
    done: Bool[Tensor, " N"]
    scores: Float[Tensor, "N k"]  # log-probabilities of live rows
    pool: Float[Tensor, "N k"]  # best scores of finished hypotheses, best first
    n_best_index: Int[Tensor, " 1"]  # n_best - 1
    penalties: Float[Tensor, " T"]  # length penalty of each length
    remaining: Int[Tensor, " 1"]  # number of sentences that are not done
    history: SearchHistory

    @property
    def beams(self) -> int:
        return self.scores.shape[1]

    def take_first(self, n: int) -> "StaticSearch":
        """Return a search over the first n sentences, on the same buffers."""
        names = ("sentences", "done", "scores", "pool")
        parts: dict[str, Any] = {name: vars(self)[name][:n] for name in names}
        rows = n * self.beams
        return replace(
            self,
            **parts,
            state=self.state.select_first(rows),
            rules=self.rules.select_first(n),
            tokens=self.tokens[:rows],
        )

    def list_mutable_tensors(self) -> list[Tensor]:
        """Return the tensors that a step changes, except caches and history, which the next step overwrites."""
        state = self.state
        per_step = [self.tokens, self.done, self.scores, self.pool, self.remaining, self.rules.step]
        return [*per_step, state.slots, state.lengths]

    def compact(self, n: int) -> None:
        """Move the sentences that are not done to the front; only the first n rows are used from now on."""
        order = self.done.to(torch.int8).argsort(stable=True)[:n]
        rows = (order[:, None] * self.beams + torch.arange(self.beams, device=order.device)).flatten()
        for buffer in (self.sentences, self.done, self.scores, self.pool, self.rules.max_lengths):
            buffer[:n] = buffer[order]
        for buffer in (self.tokens, self.state.memory_rows, self.state.slots, self.state.lengths):
            buffer[: n * self.beams] = buffer[rows]


def advance(search: StaticSearch, best: TopTokens) -> None:
    """Keep the best k of k x k candidates per sentence; those that end with END are finished."""
    n, k = search.scores.shape
    step = search.rules.step
    before = search.scores.reshape(-1, 1) - best.log_totals[:, None]
    values, order = select_best((best.values + before).view(n, -1), k)  # candidates of each row are sorted already
    tokens, parents = best.tokens.view(n, -1).gather(1, order), order // k
    penalty_now, penalty_next = search.penalties.index_select(0, step + 1), search.penalties.index_select(0, step + 2)
    finished = finish_step(
        values, tokens, search.pool, penalty_now=penalty_now, n_best_index=search.n_best_index, done=search.done,
        penalty_ahead=torch.maximum(search.penalties.index_select(0, search.rules.max_lengths + 1), penalty_next),
    )  # fmt: skip
    search.scores.copy_(finished.scores)
    search.pool.copy_(finished.pool)
    for buffer, new in zip(vars(search.history).values(), (tokens, parents, finished.ends), strict=True):
        buffer.index_put_((step, search.sentences), new.to(buffer.dtype))
    search.done.logical_or_(finished.completed)
    search.remaining.copy_((~search.done).sum())
    search.tokens.copy_(tokens.flatten())
    step.add_(1)
    search.state.lengths.add_(1)
    if k > 1:
        search.state.follow_parents((torch.arange(n, device=parents.device)[:, None] * k + parents).flatten())


def advance_fast(search: StaticSearch, best: TopTokens) -> None:
    """Do the same as `advance` in one Triton kernel."""
    import triton

    from saccade.kernels.triton.linear import get_overlap_options
    from saccade.kernels.triton.search import select_beams

    (n, k), slots, history = search.scores.shape, search.state.slots, search.history
    select_beams[(n,)](
        *best, search.scores, search.pool, search.done.view(torch.int8), search.rules.max_lengths, search.n_best_index,
        search.penalties, search.rules.step, search.sentences, search.tokens, search.state.lengths, slots,
        history.tokens, history.parents, history.ends, search.remaining, search.state.counters, END,
        history.tokens.shape[1],
        slots.shape[1], BEAMS=k, BLOCK=triton.next_power_of_2(k), ENTRIES=triton.next_power_of_2(k * k),
        WIDTH=triton.next_power_of_2(slots.shape[1]), SENTENCES=triton.next_power_of_2(n), num_warps=1 if k == 1 else 4,
        **get_overlap_options(search.scores),
    )  # fmt: skip
