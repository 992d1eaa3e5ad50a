"""Count the floating-point operations (FLOPs) per token.

A matmul costs 2 FLOPs per parameter and token: one multiplication, one addition. Attention adds 4 x keys x width per
layer, 2 for the scores and 2 for the weighted sum of values; causal attention counts all scores, as is usual for MFU.
The backward pass costs twice the forward pass, and `recompute` one more forward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from saccade.layers.attention.multihead import Attention
from saccade.model.model import Model
from saccade.plan.counts import count_active, is_head

BACKWARD_COST = 2  # forward passes that a backward pass costs: gradients of the input and of the weights


class Flops(NamedTuple):
    """FLOPs of the forward pass per source token and per target token."""

    source: float
    target: float
    attention: float  # the part of source + target for scores and weighted sums of attention
    predicted_share: float | None = None  # predicted tokens per source token, if the writer is a head
    target_ratio: float = 1.0  # target tokens per source token, if the writer has a stack

    @property
    def mean(self) -> float:
        """FLOPs per token of source and target together; with a head, per source token."""
        if self.predicted_share is not None:
            return self.source + self.predicted_share * self.target
        return (self.source + self.target_ratio * self.target) / (1 + self.target_ratio) if self.source else self.target

    def get_training(self, *, recompute: bool = False) -> float:
        """Return the FLOPs per token of forward and backward pass."""
        return (1 + BACKWARD_COST + recompute) * self.mean


def count_flops(model: Model, *, length: int, predicted_share: float | None = None, target_ratio: float = 1.0) -> Flops:
    """Count for sequences of `length` tokens on each side."""
    source, target = (2 * count_active(model, is_source=of_source) for of_source in (True, False))
    scores = {True: 0.0, False: 0.0}
    for path, module in model.named_modules(remove_duplicate=False):
        scores[path.startswith("reader")] += 4 * count_scores(model, path, module, length=length)
    if is_head(model.writer) and model.writer.queries_reader:  # its queries pass through the reader's layers
        target, scores[False] = target + source, scores[True]
    return Flops(source + scores[True], target + scores[False], sum(scores.values()), predicted_share, target_ratio)


def count_scores(model: Model, path: str, module: nn.Module, *, length: int) -> int:
    """Return the keys per query times the width of all heads of an attention module; 0 for any other module."""
    if isinstance(module, Attention):
        keys, window = module.count_keys(length), get_window(model, path)
        return module.width * (keys if window is None else min(keys, 2 * window + 1))
    if not path.endswith(".cross"):
        return 0
    # In recurrent and convolutional writers, attention is as wide as its projections; a dot product, as the memory is.
    dot_width = 0 if model.reader is None else model.reader.dim
    return length * max((int(parameter.shape[0]) for parameter in module.parameters()), default=dot_width)


def get_window(model: Model, path: str) -> int | None:
    """Return the window of a self-attention module: visible keys on each side; None means all."""
    stack, between, rest = path.partition(".blocks.")
    if not between or not path.endswith(".self"):
        return None
    windows: Any = model.get_submodule(stack).windows
    return windows[int(rest.partition(".")[0])]
