"""Greedy search and beam search of a Transformer writer with many steps per C call.

On a CPU, the steps of a small model take less time than the Python between them.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.cpu import native, stack_step
from saccade.kernels.cpu.stack_step import (
    INT64,
    POINTER,
    CachedState,
    Linear,
    Norm,
    Scratch,
    Stack,
    StepPosition,
    get_address,
)
from saccade.kernels.memory import check_product
from saccade.kernels.weights import WriterWeights

SOURCE = Path(__file__).with_suffix(".c")


class OutputHead(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("step", "table", "int8_table", "scales", "positions")),
        ("scale", ctypes.c_float), ("norm", Norm), ("head", Linear), ("vocabulary", INT64),
    ]  # fmt: skip


CANDIDATE_NUMBERS = 3  # of 64 bits, in a candidate of the beam search


class SearchParams(ctypes.Structure):
    _fields_ = [
        ("suppressed", POINTER),
        *((name, INT64) for name in ("num_suppressed", "end", "min_length", "max_steps")),
    ]


class Beams(ctypes.Structure):
    _fields_ = [
        ("width", INT64), ("scores", POINTER), ("origins", POINTER), ("capacity", INT64),
        *((name, POINTER) for name in ("roots", "history", "values", "parents", "tokens", "candidates")),
    ]  # fmt: skip


class SearchRequest(NamedTuple):
    """The decoding state, and the constraints on the output."""

    state: CachedState
    caches: Any
    position_table: Float[Tensor, "L D"] | None  # positional encodings
    suppressed: Sequence[int]  # tokens that are never generated
    end: int
    min_length: int  # the first step in which END may be generated
    max_steps: int


# log-probabilities, parents, tokens
TopCandidates = tuple[Float[Tensor, "N k"], Int[Tensor, "N k"], Int[Tensor, "N k"]]


class BeamResult(NamedTuple):
    """Rows after several steps of beam search, and the best candidates of the next step, if it succeeded."""

    roots: Int[Tensor, " R"]  # the row before these steps from which each row descends
    history: Int[Tensor, "R t"]  # tokens of these steps
    scores: Float[Tensor, "N k"]
    best: TopCandidates | None


class SearchSteps:
    """The C description of a Transformer writer: token embeddings, stack, final norm and output projection."""

    def __init__(self, weights: WriterWeights) -> None:
        self.stack_step, tokens = stack_step.prepare_step(weights.stack), weights.embedding.tokens
        self.kept_alive = weights.embedding, weights.output  # owners of the memory that C points to
        table = (None, tokens.data_ptr()) if tokens.dtype == torch.int8 else (tokens.data_ptr(), None)
        scales = weights.embedding.token_scales
        last = Norm() if weights.stack.norm.kind == "none" else self.stack_step.build_norm(weights.stack.norm)
        head, vocabulary = self.stack_step.build_linear(weights.output), weights.output.native_linear.out_features
        self.output_head = OutputHead(
            get_address(stack_step.load_kernel()), *table, None if scales is None else scales.data_ptr(), None,
            weights.embedding.scale, last, head, vocabulary,
        )  # fmt: skip

    def run_greedy(
        self, first: Int[Tensor, " R"], log_probs: Float[Tensor, " R"], request: SearchRequest
    ) -> tuple[Int[Tensor, "R t"], Float[Tensor, " R"]]:
        """Greedy search from the tokens `first` until a row emits END: new tokens and sums of log-probabilities."""
        check_product(len(first), self.output_head.vocabulary)
        logits = log_probs.new_empty(len(first) * (self.output_head.vocabulary + 1))
        tokens, sums = first.new_empty(request.max_steps + 1, len(first)), log_probs.clone()
        tokens[0] = first
        taken = self._call("greedy_steps", request, logits.data_ptr(), tokens.data_ptr(), sums.data_ptr())
        return tokens[1 : taken + 1].T, sums

    def run_beams(self, last: Int[Tensor, " R"], scores: Float[Tensor, "N k"], request: SearchRequest) -> BeamResult:
        """Beam search from the tokens `last` until a candidate ends."""
        (n, width), rows, state = scores.shape, len(last), request.state
        assert state.origins is not None, "states on a CPU have origins"
        scores = scores.clone()
        values, tokens, parents = torch.empty_like(scores), last.clone(), torch.empty_like(last)
        roots, history = torch.arange(rows), last.new_empty(rows, request.max_steps)
        check_product(rows, self.output_head.vocabulary)
        logits = scores.new_empty(rows * self.output_head.vocabulary)
        # Memory to reorder either histories or caches.
        buffer = torch.empty(rows * max(request.max_steps + 1, self.stack_step.max_width), dtype=torch.long)
        candidates = last.new_empty(rows, CANDIDATE_NUMBERS)
        beams = Beams(
            width, scores.data_ptr(), state.origins.data_ptr(), state.origins.shape[1],
            *(part.data_ptr() for part in (roots, history, values, parents, tokens, candidates)),
        )  # fmt: skip
        taken = self._call("beam_steps", request, beams, logits.data_ptr(), buffer.data_ptr())
        done = taken - 1 if taken > 0 else -taken
        best = (values, parents.view(n, width), tokens.view(n, width)) if taken > 0 else None
        return BeamResult(roots, history[:, :done], scores, best)

    def _call(self, name: str, request: SearchRequest, *arguments: Any) -> int:
        """Call a C function; returns the number of steps that it reports."""
        state, positions = request.state, request.position_table
        keep = None if state.memory_mask is None else state.memory_mask.contiguous()
        position = self.stack_step.build_position(state, request.caches, keep)
        x = torch.empty(position.rows, 1, self.stack_step.dim)
        suppressed, taken = (INT64 * len(request.suppressed))(*request.suppressed), INT64()
        output_head = OutputHead.from_buffer_copy(self.output_head)
        output_head.positions = None if positions is None else positions.data_ptr()
        params = SearchParams(
            ctypes.addressof(suppressed), len(suppressed), request.end, request.min_length, request.max_steps
        )
        function: Any = load_kernels()[name]
        scratch = self.stack_step.allocate_scratch(x, position, steps=request.max_steps)
        function(self.stack_step.stack, position, scratch, output_head, params, *arguments, ctypes.byref(taken))
        return taken.value


@lru_cache(1)
def load_kernels() -> dict[str, Any]:
    """The compiled functions by name; empty where C kernels are not available."""
    common = [ctypes.POINTER(kind) for kind in (Stack, StepPosition, Scratch, OutputHead, SearchParams)]
    rest = {
        "greedy_steps": (POINTER, POINTER, POINTER),
        "beam_steps": (ctypes.POINTER(Beams), POINTER, POINTER),
    }
    found = {
        name: native.load_function(SOURCE, name, *common, *kinds, ctypes.POINTER(INT64)) for name, kinds in rest.items()
    }
    return {name: function for name, function in found.items() if function is not None}
