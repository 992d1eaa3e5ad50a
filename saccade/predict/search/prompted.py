"""Going on from a prompt: to a search it looks like a writer that begins with START."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import Step
from saccade.predict.search.filters import Rule, one_token
from saccade.predict.search.greedy import Decoder


@dataclass(frozen=True)
class PromptState:
    """Where the writer stands, and what it has seen."""

    inner: State
    last: Int[Tensor, "R 1"] | None  # of the prompt, which the first step reads in the place of START
    seen: Int[Tensor, "R t"]  # prompt and output so far, without START

    def reorder(self, indices: Int[Tensor, " C"]) -> "PromptState":
        last = None if self.last is None else self.last.index_select(0, indices)
        return PromptState(self.inner.reorder(indices), last, self.seen.index_select(0, indices))


class PromptedWriter:
    """A writer after prompts, with penalties for what has occurred in prompt and output."""

    def __init__(self, writer: Decoder, *, repetition: float = 1.0, frequency: float = 0.0) -> None:
        self.writer, self.repetition, self.frequency = writer, repetition, frequency

    def start(self, memory: Memory | None, prompt: Int[Tensor, "R n"], *, capacity: int) -> PromptState:
        """Reads all but the last token of prompts of one length, each with START first."""
        inner = self.writer.start(memory, rows=prompt.shape[0], capacity=capacity)
        if prompt.shape[1] > 1:
            inner = self.writer.step(prompt[:, :-1], inner).state
        return PromptState(inner, prompt[:, -1:], prompt[:, 1:])

    def step(self, inputs: Int[Tensor, "R n"], state: PromptState, *, align: bool = False) -> Step:
        """The first step reads the last token of the prompt, whatever it is given."""
        seen = state.seen if state.last is not None else torch.cat((state.seen, inputs), 1)
        step = self.writer.step(inputs if state.last is None else state.last, state.inner, align=align)
        logits = self.penalised(step.logits, seen) if self.repetition != 1.0 or self.frequency else step.logits
        return Step(logits, PromptState(step.state, None, seen), step.weights)

    def penalised(self, logits: Float[Tensor, "R V"], seen: Int[Tensor, "R t"]) -> Float[Tensor, "R V"]:
        """Log-probabilities of tokens that occurred: times `repetition`, less `frequency` for each time.

        Keskar et al. 2019 divide logits; log-probabilities do not depend on a number that is added to all logits.
        """
        log_probs = logits.float().log_softmax(-1)
        counts = torch.zeros_like(log_probs).scatter_add(1, seen, torch.ones_like(seen, dtype=log_probs.dtype))
        return torch.where(counts > 0, log_probs * self.repetition, log_probs) - self.frequency * counts


def stopping(stops: Sequence[str], text_of: Callable[[int, list[int]], str]) -> Rule:
    """Only END once a stop text was written; `text_of` gives the output of a sentence from its ids."""

    def rule(allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        outputs = zip(rows.tolist(), written[:, 1:].tolist(), strict=True)
        done = [first_stop(text_of(row, ids), stops) is not None for row, ids in outputs]
        if not any(done):
            return allowed
        return torch.where(torch.tensor(done, device=allowed.device)[:, None], one_token(END, allowed), allowed)

    return rule


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of the stop texts begins."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return min(found) if found else None
