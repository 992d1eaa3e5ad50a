"""Many steps of a Transformer that writes, in one call of C: on a CPU, what a small model waits for is Python."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.cpu import native, stack_step
from saccade.kernels.cpu.stack_step import LONG, POINTER, CachedState, Desk, Linear, Norm, Place, Stack, address
from saccade.kernels.weights import WriterWeights

SOURCE = Path(__file__).with_suffix(".c")


class Voice(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("step", "table", "bytes", "scales", "places")), ("scale", ctypes.c_float),
        ("norm", Norm), ("head", Linear), ("words", LONG),
    ]  # fmt: skip


class Wish(ctypes.Structure):
    _fields_ = [("never", POINTER), *((name, LONG) for name in ("count", "end", "least", "steps"))]


class Beams(ctypes.Structure):
    _fields_ = [
        ("width", LONG), ("scores", POINTER), ("origins", POINTER), ("room", LONG),
        *((name, POINTER) for name in ("roots", "history", "values", "parents", "tokens")),
    ]  # fmt: skip


class Asked(NamedTuple):
    """What may be written, and where the writer stands."""

    state: CachedState
    caches: Any
    places: Float[Tensor, "L D"] | None  # a vector for each position
    never: Sequence[int]  # tokens that may not be written
    end: int
    least: int  # the step from which on END may be written
    steps: int  # at most


Best = tuple[Float[Tensor, "N k"], Int[Tensor, "N k"], Int[Tensor, "N k"]]  # log-probabilities, parents, tokens


class Steps(NamedTuple):
    """What steps of beam search have done, and the best ways on from there, where there are such."""

    roots: Int[Tensor, " R"]  # the row that each one was before
    history: Int[Tensor, "R t"]
    scores: Float[Tensor, "N k"]
    best: Best | None


class SearchSteps:
    """What is around a stack, described for C: vectors of tokens, a norm, the product to the vocabulary."""

    def __init__(self, weights: WriterWeights) -> None:
        self.whole, tokens = stack_step.prepare_step(weights.stack), weights.embedding.tokens
        self.parts = weights.embedding, weights.output  # what the addresses below lead to
        table = (None, tokens.data_ptr()) if tokens.dtype == torch.int8 else (tokens.data_ptr(), None)
        scales = weights.embedding.token_scales
        last = Norm() if weights.stack.norm.kind == "none" else self.whole.norm(weights.stack.norm)
        head, words = self.whole.linear(weights.output), weights.output.prepared.outputs
        self.voice = Voice(
            address(stack_step.kernel()), *table, None if scales is None else scales.data_ptr(), None,
            weights.embedding.scale, last, head, words,
        )  # fmt: skip

    def greedy(
        self, first: Int[Tensor, " R"], log_probs: Float[Tensor, " R"], asked: Asked
    ) -> tuple[Int[Tensor, "R t"], Float[Tensor, " R"]]:
        """The best tokens behind what was written last, up to the first END, and sums of log-probabilities."""
        logits = log_probs.new_empty(len(first) * (self.voice.words + 1))
        tokens, sums = first.new_empty(asked.steps + 1, len(first)), log_probs.clone()
        tokens[0] = first
        taken = self._take("greedy_steps", asked, logits.data_ptr(), tokens.data_ptr(), sums.data_ptr())
        return tokens[1 : taken + 1].T, sums

    def beams(self, last: Int[Tensor, " R"], scores: Float[Tensor, "N k"], asked: Asked) -> Steps:
        """Steps of beam search behind what was written last, up to one in which something ends."""
        (n, width), rows, state = scores.shape, len(last), asked.state
        assert state.origins is not None, "on a CPU they are there"
        scores = scores.clone()
        values, tokens, parents = torch.empty_like(scores), last.clone(), torch.empty_like(last)
        roots, history = torch.arange(rows), last.new_empty(rows, asked.steps)
        logits = scores.new_empty(rows * self.voice.words)
        copy = torch.empty(rows * max(asked.steps + 1, self.whole.widest), dtype=torch.long)  # enough for either
        beams = Beams(
            width, scores.data_ptr(), state.origins.data_ptr(), state.origins.shape[1],
            *(part.data_ptr() for part in (roots, history, values, parents, tokens)),
        )  # fmt: skip
        taken = self._take("beam_steps", asked, beams, logits.data_ptr(), copy.data_ptr())
        done = taken - 1 if taken > 0 else -taken
        best = (values, parents.view(n, width), tokens.view(n, width)) if taken > 0 else None
        return Steps(roots, history[:, :done], scores, best)

    def _take(self, name: str, asked: Asked, *given: Any) -> int:
        """Calls the source; the number that it gives back."""
        state, places = asked.state, asked.places
        keep = None if state.memory_mask is None else state.memory_mask.contiguous()
        place = self.whole.place(state, asked.caches, keep)
        x = torch.empty(place.rows, 1, self.whole.dim)
        never, taken = (LONG * len(asked.never))(*asked.never), LONG()
        voice = Voice.from_buffer_copy(self.voice)
        voice.places = None if places is None else places.data_ptr()
        wish = Wish(ctypes.addressof(never), len(never), asked.end, asked.least, asked.steps)
        call: Any = kernels()[name]
        desk = self.whole.desk(x, place, steps=asked.steps)
        call(self.whole.stack, place, desk, voice, wish, *given, ctypes.byref(taken))
        return taken.value


@lru_cache(1)
def kernels() -> dict[str, Any]:
    """The compiled functions; nothing where there are none."""
    around = [ctypes.POINTER(kind) for kind in (Stack, Place, Desk, Voice, Wish)]
    rest = {
        "greedy_steps": (POINTER, POINTER, POINTER),
        "beam_steps": (ctypes.POINTER(Beams), POINTER, POINTER),
    }
    found = {name: native.function(SOURCE, name, *around, *kinds, ctypes.POINTER(LONG)) for name, kinds in rest.items()}
    return {name: function for name, function in found.items() if function is not None}
