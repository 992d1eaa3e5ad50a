"""Continue prompts: wraps a writer so that a search may begin with START as usual."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.config.protocols import State
from saccade.data.tokenization.tokenizers import END
from saccade.layers.memory import Memory
from saccade.model.writers.tokens import Step
from saccade.predict.search.filters import Rule, one_hot_mask
from saccade.predict.search.greedy import AutoregressiveWriter


@dataclass(frozen=True)
class PromptState:
    """The writer's state, and the tokens that it has read."""

    inner: State
    last_prompt_token: Int[Tensor, "R 1"] | None  # read by the first step in place of START
    seen: Int[Tensor, "R t"]  # prompt and output so far, without START

    def reorder(self, indices: Int[Tensor, " C"]) -> "PromptState":
        last = None if self.last_prompt_token is None else self.last_prompt_token.index_select(0, indices)
        return PromptState(self.inner.reorder(indices), last, self.seen.index_select(0, indices))


class PromptedWriter:
    """A writer that continues prompts, with penalties for tokens that occurred in the prompt or the output."""

    def __init__(self, writer: AutoregressiveWriter, *, repetition: float = 1.0, frequency: float = 0.0) -> None:
        self.writer, self.repetition, self.frequency = writer, repetition, frequency

    def start(self, memory: Memory | None, prompt: Int[Tensor, "R n"], *, capacity: int) -> PromptState:
        """Read all but the last token of the prompts, which have one length and begin with START."""
        inner = self.writer.start(memory, rows=prompt.shape[0], capacity=capacity)
        if prompt.shape[1] > 1:
            inner = self.writer.step(prompt[:, :-1], inner).state
        return PromptState(inner, prompt[:, -1:], prompt[:, 1:])

    def step(self, inputs: Int[Tensor, "R n"], state: PromptState, *, align: bool = False) -> Step:
        """Take one step; the first one reads the last prompt token instead of its input."""
        seen = state.seen if state.last_prompt_token is not None else torch.cat((state.seen, inputs), 1)
        step = self.writer.step(
            inputs if state.last_prompt_token is None else state.last_prompt_token, state.inner, align=align
        )
        logits = (
            self.penalize_repetition(step.logits, seen) if self.repetition != 1.0 or self.frequency else step.logits
        )
        return Step(logits, PromptState(step.state, None, seen), step.weights)

    def penalize_repetition(self, logits: Float[Tensor, "R V"], seen: Int[Tensor, "R t"]) -> Float[Tensor, "R V"]:
        """Multiply log-probabilities of tokens that occurred by `repetition`; subtract `frequency` per occurrence.

        Keskar et al. 2019 divide logits; log-probabilities do not change when a constant is added to all logits.
        """
        log_probs = logits.float().log_softmax(-1)
        counts = torch.zeros_like(log_probs).scatter_add(1, seen, torch.ones_like(seen, dtype=log_probs.dtype))
        return torch.where(counts > 0, log_probs * self.repetition, log_probs) - self.frequency * counts


def build_stop_rule(stops: Sequence[str], decode: Callable[[int, list[int]], str]) -> Rule:
    """Return a rule that allows only END once a stop string was output; `decode` maps sentence and ids to text."""

    def rule(allowed: Tensor, written: Tensor, rows: Tensor) -> Tensor:
        outputs = zip(rows.tolist(), written[:, 1:].tolist(), strict=True)
        done = [find_first_stop(decode(row, ids), stops) is not None for row, ids in outputs]
        if not any(done):
            return allowed
        return torch.where(torch.tensor(done, device=allowed.device)[:, None], one_hot_mask(END, allowed), allowed)

    return rule


def find_first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the index of the first stop string in a text, None if there is none."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return min(found) if found else None
