"""Search on a CPU, many steps in a call of C (`kernels/cpu/search_steps.py`), where a writer exports its weights."""

from collections.abc import Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.config.protocols import State, Support, get_capabilities
from saccade.data.tokenization.tokenizers import END
from saccade.kernels.cpu import native
from saccade.kernels.cpu.search_steps import Asked, SearchSteps, Steps, kernels
from saccade.kernels.weights import Unsupported, WriterWeights
from saccade.layers.attention.cache import AttentionState
from saccade.layers.record import recording
from saccade.predict.engines.engine import explain_fused_scores, explain_watched
from saccade.predict.search.filters import Rule, plain
from saccade.predict.search.greedy import DecodableModel, Found
from saccade.predict.search.request import Request
from saccade.predict.search.run import run_search

AT_ONCE = 64  # steps of one call, so that nobody who wants to stop it waits for long


class CpuFused:
    """Greedy and beam search in C, up to where an output ends; what is around that is the plain search's."""

    name, title, at_once = "cpu-fused", "fused CPU steps", False
    failures: tuple[type[Exception], ...] = ()

    def supports(self, model: DecodableModel, request: Request) -> Support:
        reason = explain_request(request)
        if not reason:
            reason = get_capabilities(model.writer, "the writer").explain_missing("fused_cpu_step")
        if not reason:
            try:
                prepare_search(model.writer.describe_step())
            except Unsupported as error:
                reason = f"the writer: {error}"
        return Support(reason)

    def run(self, model: DecodableModel, request: Request) -> list[list[Found]]:
        return run_search(model, request, prepare_search(model.writer.describe_step()))


def explain_request(request: Request) -> str:
    """Why a request is not for this engine, whatever the writer; empty where it is."""
    decoding = request.decoding
    if request.device.type != "cpu":
        return f"the batch is on {request.device.type}, not on a CPU"
    if request.prompts is not None:
        return "outputs go on from prompts"
    if decoding.sample:
        return "tokens are sampled"
    if decoding.no_repeat or decoding.coverage or request.prefix:
        return "each step depends on what was written (no_repeat, coverage or prefix)"
    if torch.is_grad_enabled() or recording():
        return "gradients or attention weights are recorded"
    if not kernels():
        return native.explain_missing() or "the C kernels could not be compiled"
    return explain_watched(request) or explain_fused_scores(request)


class FusedSearch:
    """A writer whose steps are taken in C: the `MultiStep` of a search over it."""

    def __init__(self, weights: WriterWeights) -> None:
        self.embedding, tokens = weights.embedding, weights.embedding.tokens
        if tokens.dtype not in (torch.float32, torch.int8):
            raise Unsupported(f"its token vectors are {tokens.dtype}, not float32 or int8")
        self.steps = SearchSteps(weights)
        self.table: Tensor | None = None

    def take_greedy(
        self, state: State, written: Int[Tensor, "R t"], log_probs: Float[Tensor, " R"], rules: Sequence[Rule]
    ) -> tuple[Int[Tensor, "R k"], Float[Tensor, " R"], State] | None:
        """The next tokens of all rows, up to the first END, sums and state."""
        at = cast(AttentionState, state)  # that of every writer that declares `fused_cpu_step`
        asked = self._ask(at, written, rules, most=AT_ONCE)
        if asked is None:
            return None
        tokens, sums = self.steps.greedy(self.embedding.rows(written[:, -1]), log_probs, asked)
        return (tokens, sums, at.advance(tokens.shape[1])) if tokens.shape[1] else None

    def take_beams(
        self,
        state: State,
        written: Int[Tensor, "R t"],
        scores: Float[Tensor, "N k"],
        rules: Sequence[Rule],
        *,
        single: bool,
    ) -> tuple[Steps, State] | None:
        """Steps of beam search, up to one in which something ends; or a `single` one."""
        at = cast(AttentionState, state)
        asked = self._ask(at, written, rules, most=1 if single else AT_ONCE)
        if asked is None or at.origins is None or not at.origins.is_contiguous():
            return None
        steps = self.steps.beams(self.embedding.rows(written[:, -1]).contiguous(), scores, asked)
        return steps, at.further(steps.history.shape[1] + (steps.best is not None))

    def _ask(
        self, state: AttentionState, written: Int[Tensor, "R t"], rules: Sequence[Rule], *, most: int
    ) -> Asked | None:
        """What the C function is asked; None where the next step is one that it cannot take."""
        allowed, length = plain(rules), written.shape[1] - 1
        if allowed is None or not state.even:
            return None
        steps = int(min(allowed.most - length, state.capacity - state.longest, most))
        if steps < 1:
            return None
        caches, last = self.steps.whole.find_caches(state), state.longest + steps
        if caches is None or not self._has_positions(last):
            return None
        return Asked(state, caches, self.table, allowed.never, END, allowed.least - length, steps)

    def _has_positions(self, count: int) -> bool:
        """Whether the table has the vectors of the first `count` positions, where positions have any."""
        positions = self.embedding.positions
        if positions is None:
            return True
        if self.table is None or len(self.table) < count:
            self.table = positions.make_table(2 * count, torch.device("cpu"))
        return len(self.table) >= count and self.table.dtype == torch.float32


# By description: what takes the steps of a writer, or why nothing does.
PREPARED: WeakKeyDictionary[WriterWeights, tuple[FusedSearch | None, str]] = WeakKeyDictionary()


def prepare_search(weights: WriterWeights) -> FusedSearch:
    """What takes the steps of a writer, made once; raises `Unsupported` where C cannot."""
    if weights not in PREPARED:
        try:
            PREPARED[weights] = FusedSearch(weights), ""
        except Unsupported as error:
            PREPARED[weights] = None, str(error)
    fused, reason = PREPARED[weights]
    if fused is None:
        raise Unsupported(reason)
    return fused
