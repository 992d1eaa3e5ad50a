"""Breaks of ensembles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.predict.search import ensemble
from saccade.predict.search.ensemble import Ensemble, EnsembleState


@break_code("ensemble-of-one", "An ensemble uses the probabilities of its first model only.")
def use_the_first(patch: Patch) -> None:
    patch.replace(ensemble.average_log_probs, lambda original, logits: original(logits[:1]))


@break_code("ensemble-by-geometric-mean", "An ensemble averages log-probabilities instead of probabilities.")
def average_logarithms(patch: Patch) -> None:
    def average(original: Any, logits: Sequence[Tensor]) -> Tensor:
        return torch.stack([item.float().log_softmax(-1) for item in logits]).mean(0).log_softmax(-1)

    patch.replace(ensemble.average_log_probs, average)


@break_code("ensemble-states-not-reordered", "Beam search reorders the state of the first model of an ensemble only.")
def reorder_the_first(patch: Patch) -> None:
    def reorder(original: Any, self: EnsembleState, indices: Tensor) -> EnsembleState:
        rows = torch.arange(len(indices)) if len(indices) == len(self.states[0].lengths) else indices
        first, *others = self.states
        return EnsembleState((first.reorder(indices), *(state.reorder(rows) for state in others)))

    patch.replace(EnsembleState.reorder, reorder)


@break_code("ensemble-reads-once", "All models of an ensemble get what the first one reads.")
def read_once(patch: Patch) -> None:
    def read(original: Any, self: Ensemble, batch: Any) -> Any:
        found = original(self, batch)
        return tuple(found[0] for _ in found)

    patch.replace(Ensemble.read, read)
