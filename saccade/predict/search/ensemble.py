"""Ensembles: at each step, the distribution is the mean of those of all models."""

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
    """Refuse models whose vocabularies differ."""
    first = tokenizers[0]
    for other, name in zip(tokenizers[1:], names[1:], strict=True):
        for side, mine, theirs in (("source", first.source, other.source), ("target", first.target, other.target)):
            if mine.fingerprint() != theirs.fingerprint():
                raise SaccadeError(
                    f"the runs of an ensemble must share their tokenizers, but the {side} vocabulary of {name} "
                    f"({theirs.size} tokens) is not that of {names[0]} ({mine.size} tokens); "
                    f"train both with the same tokenizer (tokenizer.kind=file)"
                )


class EnsembleState(NamedTuple):
    """One state per model."""

    states: tuple[Any, ...]

    def reorder(self, indices: Int[Tensor, " C"]) -> "EnsembleState":
        return EnsembleState(tuple(state.reorder(indices) for state in self.states))


class EnsembleWriter(nn.Module):
    """A writer whose logits are the log-mean-exp of its members'; its hidden state concatenates theirs."""

    def __init__(self, writers: Sequence[TokenWriter]) -> None:
        super().__init__()
        self.writers = tuple(writers)  # not a ModuleList: each is already a submodule of its model

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, memory: Sequence[Memory | None]
    ) -> Float[Tensor, "B T D"]:
        return torch.cat([w(ids, mask, m) for w, m in zip(self.writers, memory, strict=True)], -1)

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        parts = hidden.split([w.stack.dim for w in self.writers], -1)
        return average_log_probs([w.head(part) for w, part in zip(self.writers, parts, strict=True)])

    def start(self, memory: Sequence[Memory | None], *, capacity: int, rows: int = 0) -> EnsembleState:
        both = zip(self.writers, memory, strict=True)
        return EnsembleState(tuple(w.start(m, capacity=capacity, rows=rows) for w, m in both))

    def step(self, inputs: Int[Tensor, "B n"], state: EnsembleState, *, align: bool = False) -> Step:
        steps = [w.step(inputs, s, align=align) for w, s in zip(self.writers, state.states, strict=True)]
        attention = [step.weights for step in steps if step.weights is not None]
        weights = torch.stack(attention).mean(0) if align else None
        return Step(
            average_log_probs([step.logits for step in steps]),
            EnsembleState(tuple(step.state for step in steps)),
            weights,
        )


class Ensemble(nn.Module):
    """Several models that read the same batch."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)  # registered so that .to() and .eval() reach them
        self.models = tuple(models)
        self.ctc = None  # CTC heads of members are not combined
        self.writer = EnsembleWriter([model.writer for model in models])

    def read(self, batch: Batch) -> Any:
        """Return one memory per model."""
        return tuple(model.read(batch) for model in self.models)


def average_log_probs(logits: Sequence[Float[Tensor, "... V"]]) -> Float[Tensor, "... V"]:
    """Return the log of the mean probability: log-mean-exp of the log-probabilities."""
    return torch.stack([item.float().log_softmax(-1) for item in logits]).logsumexp(0) - math.log(len(logits))
