"""Search on a CPU, many steps at a time, where a writer is one that `kernels/cpu/search_steps.py` knows."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.data.tokenization.tokenizers import END
from saccade.kernels.cpu import stack_step
from saccade.kernels.cpu.search_steps import Asked, SearchSteps, Steps, kernels
from saccade.kernels.cpu.stack_step import Unknown, WholeStep
from saccade.layers.attention.positions import Learned, Sinusoidal
from saccade.layers.memory import AttentionState
from saccade.model.readers.tokens import Embedding
from saccade.model.writers.tokens import TokenWriter
from saccade.predict.search.filters import Rule, plain

AT_ONCE = 64  # steps of one call, so that nobody who wants to stop it waits for long


class Known:
    """A writer, described."""

    def __init__(self, writer: TokenWriter, whole: WholeStep) -> None:
        embedding = writer.embedding
        more = (embedding.norm, embedding.segments, embedding.project)
        bare = type(embedding) is Embedding and not embedding.concat and all(part is None for part in more)
        self.where = embedding.positions
        if not bare or writer.output_scale != 1.0 or not (self.where is None or in_a_table(self.where)):
            raise Unknown
        self.steps = SearchSteps(
            whole, tokens=embedding.tokens, scale=embedding.scale, norm=writer.stack.norm, output=writer.output
        )
        self.waves: Tensor | None = None

    def places(self, count: int) -> Float[Tensor, "L D"] | None:
        """The vectors of the first `count` positions at least, where there are any."""
        if isinstance(self.where, Learned):
            return self.where.table.weight
        if isinstance(self.where, Sinusoidal) and (self.waves is None or len(self.waves) < count):
            self.waves = self.where(torch.arange(2 * count)[None])[0].contiguous()
        return self.waves


# By writer: the parts that were there, and what is known of it.
KNOWN: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Known | None]] = WeakKeyDictionary()


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
) -> tuple[Known, Asked] | tuple[None, None]:
    """What takes the steps, and what it is asked; None where nothing does."""
    if type(writer) is not TokenWriter or not isinstance(state, AttentionState) or written.device.type != "cpu":
        return None, None
    allowed, length = plain(rules), written.shape[1] - 1
    if allowed is None or not kernels():
        return None, None
    whole, caches = stack_step.taker(writer.stack, state)
    known = None if whole is None else known_writer(writer, whole)
    steps = int(min(allowed.most - length, state.capacity - state.longest, most))
    if known is None or steps < 1:
        return None, None
    places = known.places(state.longest + steps)
    if places is not None and len(places) < state.longest + steps:
        return None, None
    return known, Asked(state, caches, places, allowed.never, END, allowed.least - length, steps)


def known_writer(writer: TokenWriter, whole: WholeStep) -> Known | None:
    """What is known of a writer, described anew when its weights are laid out anew."""
    parts = id(whole), id(writer.embedding.tokens), id(writer.output)
    if writer not in KNOWN or KNOWN[writer][0] != parts:
        KNOWN[writer] = parts, described(writer, whole)
    return KNOWN[writer][1]


def described(writer: TokenWriter, whole: WholeStep) -> Known | None:
    try:
        return Known(writer, whole)
    except Unknown:
        return None


def in_a_table(where: nn.Module) -> bool:
    """Whether positions are vectors, one behind the other."""
    if isinstance(where, Learned):
        return type(where.table) is nn.Embedding and where.table.weight.dtype == torch.float32
    return isinstance(where, Sinusoidal)
