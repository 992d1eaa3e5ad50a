"""Search on a CPU, many steps at a time, where a writer is one that `kernels/cpu/search_steps.py` knows."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.tokenization.tokenizers import END
from saccade.kernels.cpu.search_steps import Asked, SearchSteps, Steps, kernels
from saccade.kernels.weights import Unsupported, WriterWeights
from saccade.layers.blocks.fused_step import prepare_fused_step
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.memory import AttentionState
from saccade.model.writers.tokens import TokenWriter
from saccade.predict.search.filters import Rule, plain

AT_ONCE = 64  # steps of one call, so that nobody who wants to stop it waits for long


class FusedSearch:
    """A writer whose steps are taken in C, with the vectors of its positions."""

    def __init__(self, weights: WriterWeights) -> None:
        tokens, self.positions = weights.embedding.tokens, weights.embedding.positions
        if tokens.dtype not in (torch.float32, torch.int8):
            raise Unsupported(f"its token vectors are {tokens.dtype}, not float32 or int8")
        self.steps = SearchSteps(weights)
        self.table: Tensor | None = None

    def find_positions(self, count: int) -> Float[Tensor, "L D"] | None:
        """The vectors of the first `count` positions at least; None where positions have none."""
        if self.positions is not None and (self.table is None or len(self.table) < count):
            self.table = self.positions.make_table(2 * count, torch.device("cpu"))
        if self.table is not None and (len(self.table) < count or self.table.dtype != torch.float32):
            raise Unsupported("its table of positions is too short, or not float32")
        return self.table


# By description: what takes the steps of a writer, or why nothing does.
PREPARED: WeakKeyDictionary[WriterWeights, tuple[FusedSearch | None, str]] = WeakKeyDictionary()


def greedy_run(
    writer: Any, state: Any, written: Int[Tensor, "R t"], log_probs: Float[Tensor, " R"], rules: Sequence[Rule]
) -> tuple[Int[Tensor, "R k"], Float[Tensor, " R"], AttentionState] | None:
    """The next tokens of all rows, up to the first END, sums and state; None where they must be found one by one."""
    known, asked = ready(writer, state, written, rules)
    if known is None or asked is None:
        return None
    tokens, sums = known.steps.greedy(writer.embedding.rows(written[:, -1]), log_probs, asked)
    return (tokens, sums, state.advance(tokens.shape[1])) if tokens.shape[1] else None


def beam_run(
    writer: Any,
    state: Any,
    written: Int[Tensor, "R t"],
    scores: Float[Tensor, "N k"],
    rules: Sequence[Rule],
    *,
    most: int = AT_ONCE,
) -> tuple[Steps, AttentionState] | None:
    """At most so many steps of beam search, up to one in which something ends; None where each is to be looked at."""
    known, asked = ready(writer, state, written, rules, most=most)
    if known is None or asked is None or state.origins is None or not state.origins.is_contiguous():
        return None
    steps = known.steps.beams(writer.embedding.rows(written[:, -1]).contiguous(), scores, asked)
    return steps, state.further(steps.history.shape[1] + (steps.best is not None))


def ready(
    writer: Any, state: Any, written: Int[Tensor, "R t"], rules: Sequence[Rule], *, most: int = AT_ONCE
) -> tuple[FusedSearch, Asked] | tuple[None, None]:
    """What takes the steps, and what it is asked; None where nothing does."""
    described = type(writer) is TokenWriter and isinstance(writer.stack, TransformerStack)
    if not described or written.device.type != "cpu":
        return None, None
    allowed, length = plain(rules), written.shape[1] - 1
    if allowed is None or not kernels():
        return None, None
    steps = int(min(allowed.most - length, state.capacity - state.longest, most))
    if steps < 1:
        return None, None
    try:
        _, caches = prepare_fused_step(writer.stack, state)
        fused = prepare_search(writer.describe_step())
        positions = fused.find_positions(state.longest + steps)
    except Unsupported:
        return None, None
    return fused, Asked(state, caches, positions, allowed.never, END, allowed.least - length, steps)


def prepare_search(weights: WriterWeights) -> FusedSearch:
    """What takes the steps of a writer, made once; raises `Unsupported` where the source cannot."""
    if weights not in PREPARED:
        try:
            PREPARED[weights] = FusedSearch(weights), ""
        except Unsupported as error:
            PREPARED[weights] = None, str(error)
    fused, reason = PREPARED[weights]
    if fused is None:
        raise Unsupported(reason)
    return fused
