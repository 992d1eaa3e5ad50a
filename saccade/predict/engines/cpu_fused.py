"""CPU search with fused steps: many steps in one call of C (`kernels/cpu/search_steps.py`).

The writer must export its weights (`describe_step`).
"""

from collections.abc import Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.config.protocols import State, Support, get_capabilities
from saccade.data.tokenization.tokenizers import END
from saccade.kernels.cpu import native
from saccade.kernels.cpu.search_steps import BeamResult, SearchRequest, SearchSteps, load_kernels
from saccade.kernels.weights import Unsupported, WriterWeights
from saccade.layers.attention.cache import AttentionState
from saccade.layers.record import is_recording
from saccade.predict.engines.engine import explain_fused_scores, explain_inspection
from saccade.predict.search.filters import Rule, summarize_rules
from saccade.predict.search.greedy import DecodableModel, SearchHypothesis
from saccade.predict.search.request import Request
from saccade.predict.search.run import run_search

MAX_STEPS_PER_CALL = 64  # so that an interrupt (Ctrl-C) does not wait for long
MAX_ROWS = 16384  # limits the memory of the C code, which grows with rows and vocabulary


class CpuFused:
    """Greedy and beam search whose steps run in C until an output ends; the rest is the plain search."""

    name, title, non_autoregressive = "cpu-fused", "fused CPU steps", False
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

    def run(self, model: DecodableModel, request: Request) -> list[list[SearchHypothesis]]:
        return run_search(model, request, prepare_search(model.writer.describe_step()))


def explain_request(request: Request) -> str:
    """Return why this engine does not support a request, regardless of the writer; empty if it does."""
    decoding = request.decoding
    if request.device.type != "cpu":
        return f"the batch is on {request.device.type}, not on a CPU"
    if request.prompts is not None:
        return "outputs continue prompts"
    if decoding.sample:
        return "tokens are sampled"
    if decoding.beam * len(request.limits) > MAX_ROWS:
        return f"a batch of {len(request.limits)} inputs with {decoding.beam} beams each has more than {MAX_ROWS} rows"
    if decoding.no_repeat_ngram or decoding.coverage_penalty or request.prefix:
        return "each step depends on previous tokens (no_repeat_ngram, coverage_penalty or prefix)"
    if torch.is_grad_enabled() or is_recording():
        return "gradients or attention weights are recorded"
    if not load_kernels():
        return native.explain_missing() or "the C kernels could not be compiled"
    return explain_inspection(request) or explain_fused_scores(request)


class FusedSearch:
    """Takes the steps of a writer in C: the `MultiStep` of a search."""

    def __init__(self, weights: WriterWeights) -> None:
        self.embedding, tokens = weights.embedding, weights.embedding.tokens
        if tokens.dtype not in (torch.float32, torch.int8):
            raise Unsupported(f"its token vectors are {tokens.dtype}, not float32 or int8")
        self.steps = SearchSteps(weights)
        self.table: Tensor | None = None

    def take_greedy(
        self, state: State, sequences: Int[Tensor, "R t"], log_probs: Float[Tensor, " R"], rules: Sequence[Rule]
    ) -> tuple[Int[Tensor, "R k"], Float[Tensor, " R"], State] | None:
        """See `MultiStep.take_greedy`."""
        attention_state = cast(AttentionState, state)  # every writer that declares `fused_cpu_step` has this state
        step_request = self._build_step_request(attention_state, sequences, rules, max_steps=MAX_STEPS_PER_CALL)
        if step_request is None:
            return None
        tokens, sums = self.steps.run_greedy(self.embedding.rows(sequences[:, -1]), log_probs, step_request)
        return (tokens, sums, attention_state.advance(tokens.shape[1])) if tokens.shape[1] else None

    def take_beams(
        self,
        state: State,
        sequences: Int[Tensor, "R t"],
        scores: Float[Tensor, "N k"],
        rules: Sequence[Rule],
        *,
        single: bool,
    ) -> tuple[BeamResult, State] | None:
        """See `MultiStep.take_beams`."""
        attention_state = cast(AttentionState, state)
        step_request = self._build_step_request(
            attention_state, sequences, rules, max_steps=1 if single else MAX_STEPS_PER_CALL
        )
        if step_request is None or attention_state.origins is None or not attention_state.origins.is_contiguous():
            return None
        steps = self.steps.run_beams(self.embedding.rows(sequences[:, -1]).contiguous(), scores, step_request)
        return steps, attention_state.advance_lengths(steps.history.shape[1] + (steps.best is not None))

    def _build_step_request(
        self, state: AttentionState, sequences: Int[Tensor, "R t"], rules: Sequence[Rule], *, max_steps: int
    ) -> SearchRequest | None:
        """Build the arguments of the C function; None if it cannot take the next step."""
        summary, length = summarize_rules(rules), sequences.shape[1] - 1
        if summary is None or not state.is_uniform:
            return None
        steps = int(min(summary.max_length - length, state.capacity - state.max_length, max_steps))
        if steps < 1:
            return None
        caches, last = self.steps.stack_step.find_caches(state), state.max_length + steps
        if caches is None or not self._has_positions(last):
            return None
        return SearchRequest(
            state, caches, self.table, summary.forbidden_tokens, END, summary.min_length - length, steps
        )

    def _has_positions(self, count: int) -> bool:
        """Return whether the table covers the first `count` positions, growing it if needed; True without positions."""
        positions = self.embedding.positions
        if positions is None:
            return True
        if self.table is None or len(self.table) < count:
            self.table = positions.make_table(2 * count, torch.device("cpu"))
        return len(self.table) >= count and self.table.dtype == torch.float32


# By exported weights: the fused search, or the reason why there is none.
PREPARED_SEARCHES: WeakKeyDictionary[WriterWeights, tuple[FusedSearch | None, str]] = WeakKeyDictionary()


def prepare_search(weights: WriterWeights) -> FusedSearch:
    """Return the fused search of a writer, built once; raises `Unsupported` if the C step cannot express it."""
    if weights not in PREPARED_SEARCHES:
        try:
            PREPARED_SEARCHES[weights] = FusedSearch(weights), ""
        except Unsupported as error:
            PREPARED_SEARCHES[weights] = None, str(error)
    fused, reason = PREPARED_SEARCHES[weights]
    if fused is None:
        raise Unsupported(reason)
    return fused
