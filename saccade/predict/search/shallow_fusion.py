"""Shallow fusion (Gulcehre et al. 2015): beams are scored by log P(text | input) + w log P_lm(text).

Listen, Attend and Spell combines its language model in this way (Chan et al. 2016).
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.config.plugins import Kinds
from saccade.config.protocols import State
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import Tokenizer
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.model.run import Run, load_run
from saccade.model.writers.tokens import Step
from saccade.predict.search.greedy import AutoregressiveWriter
from saccade.predict.search.joint import assign_rest_to_pad
from saccade.predict.search.request import FusionModel
from saccade.runs import WEIGHTS, find_run


def load_fusion(
    decoding: Decoding, *, target: Tokenizer, device: str, max_length: int, kinds: Kinds
) -> FusionModel | None:
    """Load the language model that the settings name, for outputs of `max_length` tokens; None if they name none."""
    if not decoding.lm or not decoding.lm_weight:
        return None
    run = load_cached_run(decoding.lm, device, kinds)
    if not run.recipe.task.is_language_model:
        raise SaccadeError(
            f'lm = {decoding.lm!r} is a run of task "{run.recipe.task.name}"; '
            'a language model is one of task "language-model"'
        )
    if run.tokenizers.target.fingerprint() != target.fingerprint():
        raise SaccadeError(
            f"lm = {decoding.lm!r} has another vocabulary ({run.tokenizers.target.size} tokens) than this run "
            f"({target.size} tokens); train it with the tokenizer of this run (tokenizer.kind=file)"
        )
    if run.recipe.data.max_length < max_length:
        raise SaccadeError(
            f"lm = {decoding.lm!r} was made for {run.recipe.data.max_length} tokens, but outputs may have up to "
            f"{max_length}; set max_length = {run.recipe.data.max_length - 1}, or train it with "
            f"data.max_length={max_length}"
        )
    return FusionModel(run.model.writer, decoding.lm_weight)


def load_cached_run(name: str, device: str, kinds: Kinds, dtype: torch.dtype = torch.float32) -> Run:
    """Load a run that takes part in the search of another one; cached as long as its weights file does not change."""
    folder = find_run(name)
    weights = folder / WEIGHTS
    return _load_cached(folder, device, kinds, dtype, weights.stat().st_mtime_ns if weights.is_file() else 0)


@lru_cache(maxsize=1)
def _load_cached(folder: Path, device: str, kinds: Kinds, dtype: torch.dtype, modified_ns: int) -> Run:
    run = load_run(folder, kinds=kinds, device=device)
    run.model.to(dtype).eval()
    return run


class FusedState(NamedTuple):
    """The states of the writer and of the language model."""

    writer: State
    language_model: State

    def reorder(self, indices: Int[Tensor, " C"]) -> "FusedState":
        return FusedState(self.writer.reorder(indices), self.language_model.reorder(indices))


class FusedWriter:
    """A writer whose logits are log P + w log P_lm of the next token."""

    def __init__(self, writer: AutoregressiveWriter, language_model: AutoregressiveWriter, weight: float) -> None:
        self.writer, self.language_model, self.weight = writer, language_model, weight

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> FusedState:
        return FusedState(
            self.writer.start(memory, capacity=capacity, rows=rows),
            self.language_model.start(None, capacity=capacity, rows=rows),
        )

    def step(self, inputs: Int[Tensor, "B n"], state: FusedState, *, align: bool = False) -> Step:
        step = self.writer.step(inputs, state.writer, align=align)
        lm_step = self.language_model.step(inputs, state.language_model)
        lm_log_probs = lm_step.logits.float().log_softmax(-1)
        logits = step.logits.float().log_softmax(-1) + self.weight * lm_log_probs
        return Step(assign_rest_to_pad(logits), FusedState(step.state, lm_step.state), step.weights)
