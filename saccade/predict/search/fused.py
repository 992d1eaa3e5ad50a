"""A language model that advises a writer: what beams compare is log P(text | input) + w log P(text).

Shallow fusion (Gulcehre et al. 2015), which Listen, Attend and Spell takes its language model in by (Chan et al. 2016).
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from saccade.config.protocols import State
from saccade.config.schema import Decoding
from saccade.data.tokenization.tokenizers import Tokenizer
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.model.run import Run, load_run
from saccade.model.writers.tokens import Step
from saccade.predict.search.greedy import Decoder
from saccade.predict.search.joint import with_rest
from saccade.predict.search.request import LanguageModel
from saccade.runs import WEIGHTS, find_run


def load_fusion(decoding: Decoding, *, target: Tokenizer, device: str, longest: int) -> LanguageModel | None:
    """The language model that the settings name, for outputs of `longest` tokens; None where they name none."""
    if not decoding.lm or not decoding.lm_weight:
        return None
    run = loaded(decoding.lm, device)
    if not run.recipe.task.is_language_model:
        raise SaccadeError(
            f'lm = {decoding.lm!r} is a run of task "{run.recipe.task.name}"; a language model is one of task "write"'
        )
    if run.tokenizers.target.fingerprint() != target.fingerprint():
        raise SaccadeError(
            f"lm = {decoding.lm!r} has {run.tokenizers.target.size} other tokens than the {target.size} that are "
            "written; train it with the tokenizer of this run (tokenizer.kind=file)"
        )
    if run.recipe.data.max_length < longest:
        raise SaccadeError(
            f"lm = {decoding.lm!r} was made for {run.recipe.data.max_length} tokens, and up to {longest} are written; "
            f"set max_length = {run.recipe.data.max_length - 1}, or train it with data.max_length={longest}"
        )
    return LanguageModel(run.model.writer, decoding.lm_weight)


def loaded(name: str, device: str) -> Run:
    """The run of a language model, which is read once as long as its weights stay the same."""
    folder = find_run(name)
    weights = folder / WEIGHTS
    return _loaded(folder, device, weights.stat().st_mtime_ns if weights.is_file() else 0)


@lru_cache(maxsize=1)
def _loaded(folder: Path, device: str, changed: int) -> Run:
    run = load_run(folder, device=device)
    run.model.eval()
    return run


class Pair(NamedTuple):
    """Where a writer stands, and where its adviser does."""

    writer: State
    adviser: State

    def reorder(self, indices: Int[Tensor, " C"]) -> "Pair":
        return Pair(self.writer.reorder(indices), self.adviser.reorder(indices))


class FusedWriter:
    """A writer like any other, whose logits are log P + w log P_language of the next token."""

    def __init__(self, writer: Decoder, adviser: Decoder, weight: float) -> None:
        self.writer, self.adviser, self.weight = writer, adviser, weight

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> Pair:
        return Pair(
            self.writer.start(memory, capacity=capacity, rows=rows),
            self.adviser.start(None, capacity=capacity, rows=rows),
        )

    def step(self, inputs: Int[Tensor, "B n"], state: Pair, *, align: bool = False) -> Step:
        step, advice = self.writer.step(inputs, state.writer, align=align), self.adviser.step(inputs, state.adviser)
        likely = advice.logits.float().log_softmax(-1)
        logits = step.logits.float().log_softmax(-1) + self.weight * likely
        return Step(with_rest(logits), Pair(step.state, advice.state), step.weights)
