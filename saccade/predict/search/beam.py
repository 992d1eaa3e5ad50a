"""Beam search over `start/step/reorder`: N sentences have k rows each, which stand next to each other in the state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END, START
from saccade.kernels.cpu.search_steps import Best
from saccade.predict.search.filters import Rule, apply_rules
from saccade.predict.search.greedy import (
    Finished,
    Found,
    MultiStep,
    Price,
    Writer,
    best_tokens,
    coverage,
    extend,
    log_softmax,
    penalty,
)
from saccade.predict.search.trace import listened, tell

FREE = Price()


def beam_search(  # noqa: PLR0913  # the settings of a search are its parameters
    writer: Writer,
    state: State,
    *,
    limits: Int[Tensor, " N"],
    width: int,
    n_best: int = 1,
    rules: Sequence[Rule] = (),
    price: Price = FREE,
    align: bool = False,
    multi_step: MultiStep | None = None,
) -> list[list[Found]]:
    """The outputs of each sentence, best first: n_best at least, where so many exist.

    The best `width` candidates of each step are kept; those that end with END are finished and free their places for
    the next step, so that a beam of one is greedy search. A sentence leaves when no live row can still become one of
    its n_best. `limits` says how many tokens a sentence may have, END not counted; `rules` must enforce it. A price for
    what was not attended to needs `align`.
    """
    live, finished = _Live.begin(state, limits, n_best), Finished(limits.shape[0], price)
    longest = int(limits.max())
    while live.written.shape[1] <= longest + 1:
        many = None if multi_step is None else live.take_many(multi_step, width=width, rules=rules)
        best, parents, tokens = many or live.step(writer, width=width, rules=rules, align=align)
        length, maps = live.written.shape[1], live.maps
        ahead = _largest_penalty(limits[live.sentences], length=length, alpha=price.alpha)
        missed = price.beta * coverage(maps)[parents] if price.beta and maps is not None else None
        ends, live.scores, live.pool, leaves = finish_step(
            best, tokens, live.pool, penalty_now=penalty(length, price.alpha), penalty_ahead=ahead, bonus=missed
        )
        some_end, some_leave = torch.stack((ends.max() > -torch.inf, leaves.any())).tolist()
        if some_end:
            live.finish(ends, parents, finished)
        if some_leave:
            stay = (~leaves).nonzero()[:, 0]
            if not len(stay):
                break
            live.keep(stay)
            parents, tokens = parents[stay], tokens[stay]
        live.follow(parents.flatten(), tokens.flatten())
    return finished.sentences_sorted()


@dataclass
class _Live:
    """The rows that are still written: k for each of N sentences."""

    state: State
    sentences: Int[Tensor, " N"]
    written: Int[Tensor, "R t"]
    scores: Float[Tensor, "N k"]
    pool: Float[Tensor, "N n"]  # the best scores of what is finished
    maps: Tensor | None = None

    @classmethod
    def begin(cls, state: State, limits: Int[Tensor, " N"], n_best: int) -> "_Live":
        n, device = limits.shape[0], limits.device
        written, scores = torch.full((n, 1), START, device=device), torch.zeros(n, 1, device=device)
        pool = torch.full((n, n_best), -torch.inf, device=device)
        return cls(state, torch.arange(n, device=device), written, scores, pool)

    def take_many(self, multi_step: MultiStep, *, width: int, rules: Sequence[Rule]) -> Best | None:
        """As many steps as one call takes, and the best continuations of the last one; None where they end before.

        One at a time where a sentence has enough that is finished, and may leave.
        """
        if self.scores.shape[1] != width:
            return None
        single = bool(self.pool[:, -1].max() != -torch.inf)
        run = multi_step.take_beams(self.state, self.written, self.scores, rules, single=single)
        if run is None:
            return None
        steps, self.state = run
        self.written, self.scores = torch.cat((self.written[steps.roots], steps.history), 1), steps.scores
        return steps.best

    def step(self, writer: Writer, *, width: int, rules: Sequence[Rule], align: bool) -> Best:
        """The best continuations of each sentence, as `_best_candidates` gives them."""
        step = writer.step(self.written[:, -1:], self.state, align=align)
        self.maps, self.state = extend(self.maps, step.weights), step.state
        log_probs = log_softmax(step.logits)
        apply_rules(log_probs, rules, self.written, self.sentences.repeat_interleave(self.scores.shape[1]))
        best, parents, tokens = _best_candidates(log_probs, self.scores, width)
        if listened():
            tell(self.written, log_probs + self.scores.reshape(-1, 1), parents, tokens)
        return best, parents, tokens

    def finish(self, ends: Float[Tensor, "N c"], parents: Int[Tensor, "N c"], finished: Finished) -> None:
        sentence, rank = ends.isfinite().nonzero(as_tuple=True)
        at, maps = parents[sentence, rank], self.maps
        seen = None if maps is None else maps[at]
        finished.add(self.sentences[sentence], ends[sentence, rank], self.written[at], seen)

    def keep(self, stay: Int[Tensor, " n"]) -> None:
        """Lets the other sentences leave; their rows go with the next step."""
        self.sentences, self.pool, self.scores = self.sentences[stay], self.pool[stay], self.scores[stay]

    def follow(self, parents: Int[Tensor, " C"], tokens: Int[Tensor, " C"]) -> None:
        """Goes on with these tokens, each behind the row that it continues."""
        self.written = torch.cat((self.written[parents], tokens[:, None]), 1)
        self.maps = None if self.maps is None else self.maps[parents]
        self.state = self.state.reorder(parents)


def _best_candidates(log_probs: Float[Tensor, "R V"], before: Float[Tensor, "N k"], width: int) -> Best:
    """The best `width` continuations of each sentence: log-probability so far, the row it goes on from, its token."""
    (n, k), size = before.shape, log_probs.shape[1]
    values, tokens = best_tokens(log_probs, width)
    values = (values + before.reshape(-1, 1)).reshape(n, -1)
    # Equal scores: the earlier row first, then the smaller token.
    beam = torch.arange(k, device=values.device).repeat_interleave(tokens.shape[1])
    place, order = (beam * size + tokens.reshape(n, -1)).sort(dim=1)
    values, order = select_best(values.gather(1, order), width)
    place = place.gather(1, order)
    first = torch.arange(n, device=values.device)[:, None] * k
    return values, first + place // size, place % size


def _largest_penalty(limits: Int[Tensor, " N"], *, length: int, alpha: float) -> Float[Tensor, " N"]:
    """The largest length penalty ahead: that of the longest output for alpha > 0, of the next length for alpha < 0."""
    longest = limits + 1.0
    return torch.maximum(penalty(longest, alpha), penalty(torch.full_like(longest, length + 1), alpha))


# ---- the bookkeeping of one step, as tensors alone: the search on static buffers (engines/fixed_search.py) shares it,
# and the kernels in Triton (kernels/triton/search.py) and C (kernels/cpu/search_steps.c) are tested against it


class FinishedStep(NamedTuple):
    """What a step of beam search leaves behind."""

    ends: Float[Tensor, "N k"]  # log-probabilities of outputs that end at this step, -inf for all others
    scores: Float[Tensor, "N k"]  # log-probabilities of live rows, -inf for those that ended
    pool: Float[Tensor, "N n"]  # the best scores of finished outputs, best first
    leaves: Bool[Tensor, " N"]  # sentences in which no live row can become one of the best n any more


def select_best(values: Float[Tensor, "N c"], count: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """The best candidates of each sentence and their places, best first; of equal ones the earlier."""
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
    wanted: Int[Tensor, " 1"] | None = None,
    done: Bool[Tensor, " N"] | None = None,
) -> FinishedStep:
    """End the candidates whose token is END and enter their scores into the pool.

    Log-probabilities only fall, so the best that a live row can still score is its own divided by the largest penalty
    ahead. `wanted` is the place of the pool that must be filled, the last one by default; sentences that are `done`
    end nothing. Nothing here waits for the device.
    """
    ended = tokens == END
    ends = torch.where(ended if done is None else ended & ~done[:, None], values, -torch.inf)
    scores = torch.where(ended, -torch.inf, values)
    entered = ends / penalty_now if bonus is None else ends / penalty_now + bonus
    pool = torch.cat((pool, entered), 1).topk(pool.shape[1]).values
    best = scores.max(1).values
    enough = pool[:, -1] if wanted is None else pool.index_select(1, wanted)[:, 0]
    return FinishedStep(ends, scores, pool, (enough >= best / penalty_ahead) | (best == -torch.inf))
