"""Small models of the recurrent recipes with random weights, and their outputs, whole or step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import START
from saccade.layers.memory import Memory
from saccade.lectures.small import max_difference, randomize_parameters
from saccade.lectures.systems.systems import build_system
from saccade.model.model import Model

SOURCES = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]  # the second one is padded
INPUTS = [[START, 12, 13, 14, 15], [START, 16, 17]]  # of the decoder
BATCH = Batch({"source": pad(SOURCES), "target": pad(INPUTS)})


def build_random(name: str, changes: Sequence[str] = ()) -> Model:
    """Build the small model of a recipe, with noise on all parameters: biases are no longer zero."""
    return randomize_parameters(build_system(name, changes))


@torch.no_grad()
def write_at_once(model: Model, memory: Memory) -> Tensor:
    """Return the logits of all target words, computed with teacher forcing."""
    target = BATCH["target"]
    hidden, _ = model.write(target.content, target.mask, memory)
    return model.writer.head(hidden)


@torch.no_grad()
def write_stepwise(model: Model, memory: Memory, *, attends: bool = False) -> tuple[Tensor, Tensor]:
    """Return the logits of all target words, computed step by step, and the attention weights if `attends`."""
    ids = BATCH["target"].content
    state, logits, weights = model.writer.start(memory, capacity=ids.shape[1]), [], []
    for t in range(ids.shape[1]):
        step = model.writer.step(ids[:, t : t + 1], state, align=attends)
        state = step.state
        logits.append(step.logits)
        weights += [step.weights] if step.weights is not None else []
    return torch.stack(logits, 1), torch.stack(weights, 1) if weights else torch.empty(0)


def compare_rows(found: Tensor, expected: Sequence[Tensor]) -> float:
    """Return the largest difference of a padded batch from one tensor for each of its sequences."""
    cut = (row[tuple(slice(size) for size in other.shape)] for row, other in zip(found, expected, strict=True))
    return max(max_difference(row, other) for row, other in zip(cut, expected, strict=True))
