"""Greedy search, sampling and beam search as the same work on the same buffers at every step, never asking the device.

`advance` takes the best tokens of all rows one step further, in place. N sentences have k rows each; greedy search and
sampling are beams of one. What was written is kept as tokens and parents of every step, and read once, at the end. The
bookkeeping is that of `search/beam.py`; `advance_fast` does it in one Triton kernel, whose reference is `advance`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.data.tokenization.tokenizers import END
from saccade.kernels.next_token import Best, Rules
from saccade.layers.attention.static_cache import FixedState
from saccade.predict.search.beam import finish_step, select_best
from saccade.predict.search.greedy import Found, penalty, sort_outputs


@dataclass(frozen=True)
class Record:
    """What happened at each step to each sentence of the batch, whether it is still searched or not."""

    tokens: Int[Tensor, "T N k"]
    parents: Int[Tensor, "T N k"]  # the beam of the same sentence that a row went on from
    ends: Float[Tensor, "T N k"]  # log-probabilities of outputs that ended at this step, -inf for all others

    def outputs(self, *, steps: int, sentences: int, copies: int, alpha: float) -> list[list[Found]]:
        """The outputs of each sentence and its copies, best first; of equal ones the earlier and then the smaller."""
        tokens, parents, ends = (x[:steps, :sentences].cpu() for x in (self.tokens, self.parents, self.ends))
        found: list[list[Found]] = [[] for _ in range(sentences // copies)]
        # A greedy output without a probability is an output; a beam that has none is not.
        alone = ends.shape[2] == 1
        times, rows, beams = (ends != -torch.inf if alone else ends.isfinite()).nonzero(as_tuple=True)
        ids = tokens[:, rows, 0].T if alone else _traced(tokens, parents.long(), (times, rows, beams))
        log_probs = ends[times, rows, beams].tolist()
        for row, time, log_prob, line in zip(rows.tolist(), times.tolist(), log_probs, ids.tolist(), strict=True):
            found[row // copies].append(Found(line[:time], log_prob, log_prob / penalty(time + 1, alpha), None))
        return [sort_outputs(group) for group in found]


def _traced(
    tokens: Int[Tensor, "T N k"], parents: Int[Tensor, "T N k"], ends: tuple[Tensor, Tensor, Tensor]
) -> Int[Tensor, "f T"]:
    """The tokens of outputs from the place where each ended back to the beginning, all outputs at once."""
    times, rows, current = ends
    ids = torch.zeros(len(times), tokens.shape[0], dtype=tokens.dtype)
    for step in range(tokens.shape[0] - 1, -1, -1):
        ids[:, step] = tokens[step, rows, current]
        current = torch.where(times >= step, parents[step, rows, current], current)
    return ids


@dataclass(frozen=True)
class Search:
    """Everything that a search keeps on the device."""

    state: FixedState
    rules: Rules
    tokens: Int[Tensor, " R"]  # what each row has just written
    sentences: Int[Tensor, " N"]  # the number of each sentence in the batch
    done: Bool[Tensor, " N"]
    scores: Float[Tensor, "N k"]  # log-probabilities of live rows
    pool: Float[Tensor, "N k"]  # the best scores of finished outputs, best first
    wanted: Int[Tensor, " 1"]  # how many outputs of each sentence, less one
    penalties: Float[Tensor, " T"]  # of each length
    left: Int[Tensor, " 1"]  # sentences that are not done
    record: Record

    @property
    def beams(self) -> int:
        return self.scores.shape[1]

    def first(self, n: int) -> "Search":
        """The first n sentences alone, on the same buffers."""
        per = ("sentences", "done", "scores", "pool")
        parts: dict[str, Any] = {name: vars(self)[name][:n] for name in per}
        rows = n * self.beams
        return replace(
            self, **parts, state=self.state.first(rows), rules=self.rules.first(n), tokens=self.tokens[:rows]
        )

    def moving(self) -> list[Tensor]:
        """What a step changes, besides keys, values and the record, which are written again by the next step."""
        state = self.state
        per_step = [self.tokens, self.done, self.scores, self.pool, self.left, self.rules.step]
        return [*per_step, state.slots, state.lengths]

    def shrink(self, n: int) -> None:
        """The sentences that are not done come first, and at most the first n of these matter from now on."""
        order = self.done.to(torch.int8).argsort(stable=True)[:n]
        rows = (order[:, None] * self.beams + torch.arange(self.beams, device=order.device)).flatten()
        for buffer in (self.sentences, self.done, self.scores, self.pool, self.rules.limits):
            buffer[:n] = buffer[order]
        for buffer in (self.tokens, self.state.source, self.state.slots, self.state.lengths):
            buffer[: n * self.beams] = buffer[rows]


def advance(search: Search, best: Best) -> None:
    """Keeps the best k of k x k candidates of each sentence; those that end with END are finished."""
    n, k = search.scores.shape
    step = search.rules.step
    before = search.scores.reshape(-1, 1) - best.log_totals[:, None]
    values, order = select_best((best.values + before).view(n, -1), k)  # each row's are sorted already
    tokens, parents = best.tokens.view(n, -1).gather(1, order), order // k
    now, later = search.penalties.index_select(0, step + 1), search.penalties.index_select(0, step + 2)
    finished = finish_step(
        values, tokens, search.pool, penalty_now=now, wanted=search.wanted, done=search.done,
        penalty_ahead=torch.maximum(search.penalties.index_select(0, search.rules.limits + 1), later),
    )  # fmt: skip
    search.scores.copy_(finished.scores)
    search.pool.copy_(finished.pool)
    for kept, new in zip(vars(search.record).values(), (tokens, parents, finished.ends), strict=True):
        kept.index_put_((step, search.sentences), new.to(kept.dtype))
    search.done.logical_or_(finished.leaves)
    search.left.copy_((~search.done).sum())
    search.tokens.copy_(tokens.flatten())
    step.add_(1)
    search.state.lengths.add_(1)
    if k > 1:
        search.state.follow((torch.arange(n, device=parents.device)[:, None] * k + parents).flatten())


def advance_fast(search: Search, best: Best) -> None:
    """The same in one kernel."""
    import triton

    from saccade.kernels.triton.linear import overlap
    from saccade.kernels.triton.search import keep_best

    (n, k), slots, record = search.scores.shape, search.state.slots, search.record
    keep_best[(n,)](
        *best, search.scores, search.pool, search.done.view(torch.int8), search.rules.limits, search.wanted,
        search.penalties, search.rules.step, search.sentences, search.tokens, search.state.lengths, slots,
        record.tokens, record.parents, record.ends, search.left, search.state.counters, END, record.tokens.shape[1],
        slots.shape[1], BEAMS=k, BLOCK=triton.next_power_of_2(k), ENTRIES=triton.next_power_of_2(k * k),
        WIDTH=triton.next_power_of_2(slots.shape[1]), SENTENCES=triton.next_power_of_2(n), num_warps=1 if k == 1 else 4,
        **overlap(search.scores),
    )  # fmt: skip
