"""Several models that write together: each step's distribution is the mean of theirs."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.errors import SaccadeError
from saccade.layers.memory import Memory
from saccade.model.model import Model
from saccade.model.writers.tokens import Step, TokenWriter


def check_same_vocabulary(tokenizers: Sequence[Tokenizers], names: Sequence[str]) -> None:
    """Refuses models that do not mean the same by the same number."""
    first = tokenizers[0]
    for other, name in zip(tokenizers[1:], names[1:], strict=True):
        for side, mine, theirs in (("source", first.source, other.source), ("target", first.target, other.target)):
            if mine.fingerprint() != theirs.fingerprint():
                raise SaccadeError(
                    f"the runs of an ensemble must share their tokenizers, but the {side} vocabulary of {name} "
                    f"({theirs.size} tokens) is not that of {names[0]} ({mine.size} tokens); "
                    f"train both with the same tokenizer (tokenizer.kind=file)"
                )


class States(NamedTuple):
    """One state for each model."""

    states: tuple[Any, ...]

    def reorder(self, indices: Int[Tensor, " C"]) -> "States":
        return States(tuple(state.reorder(indices) for state in self.states))


class EnsembleWriter(nn.Module):
    """A writer like any other: its hidden state is theirs side by side, its logits are log-mean-exp of theirs."""

    def __init__(self, writers: Sequence[TokenWriter]) -> None:
        super().__init__()
        self.writers = tuple(writers)  # no list of modules: each belongs to its model

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, memory: Sequence[Memory | None]
    ) -> Float[Tensor, "B T D"]:
        return torch.cat([w(ids, mask, m) for w, m in zip(self.writers, memory, strict=True)], -1)

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        parts = hidden.split([w.stack.dim for w in self.writers], -1)
        return mean([w.head(part) for w, part in zip(self.writers, parts, strict=True)])

    def start(self, memory: Sequence[Memory | None], *, capacity: int, rows: int = 0) -> States:
        both = zip(self.writers, memory, strict=True)
        return States(tuple(w.start(m, capacity=capacity, rows=rows) for w, m in both))

    def step(self, inputs: Int[Tensor, "B n"], state: States, *, align: bool = False) -> Step:
        steps = [w.step(inputs, s, align=align) for w, s in zip(self.writers, state.states, strict=True)]
        looks = [step.weights for step in steps if step.weights is not None]
        weights = torch.stack(looks).mean(0) if align else None
        return Step(mean([step.logits for step in steps]), States(tuple(step.state for step in steps)), weights)


class Ensemble(nn.Module):
    """Models that read the same text; memory is one for each."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)  # what .to() and .eval() find
        self.models = tuple(models)
        self.ctc = None  # members have their own, which nobody joins
        self.writer = EnsembleWriter([model.writer for model in models])

    def read(self, batch: Batch) -> Any:
        """One memory for each model."""
        return tuple(model.read(batch) for model in self.models)


def mean(logits: Sequence[Float[Tensor, "... V"]]) -> Float[Tensor, "... V"]:
    """log of the mean probability: log-mean-exp of the log-probabilities."""
    return torch.stack([item.float().log_softmax(-1) for item in logits]).logsumexp(0) - math.log(len(logits))
