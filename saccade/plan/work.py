"""Floating-point operations for a token.

A matrix product costs 2 for each of its numbers and each token that passes it: one product, one sum. Attention adds
4 x keys x width in each layer, 2 for the scores and 2 for the mean of the values; of causal attention all scores count,
as in MFU. The backward pass costs twice the forward pass, and `recompute` one more forward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from saccade.layers.attention.multihead import Attention
from saccade.model.model import Model
from saccade.plan.counts import is_head, passed

BACKWARD = 2  # forward passes that a backward pass costs: gradients of what went in, and of the matrix


class Work(NamedTuple):
    """Of the forward pass, for one token that is read and one that is written."""

    source: float
    target: float
    of_scores: float  # the part of both that attention's scores and means take
    share: float | None = None  # where what writes is a head over states: tokens that pass it, for each that is read
    beside: float = 1.0  # where there are two sides: tokens that are written for each that is read

    @property
    def mean(self) -> float:
        """For one token of both sides together; or for one that is read, with its share of a head."""
        if self.share is not None:
            return self.source + self.share * self.target
        return (self.source + self.beside * self.target) / (1 + self.beside) if self.source else self.target

    def training(self, *, recompute: bool = False) -> float:
        """For one token, forward and backward."""
        return (1 + BACKWARD + recompute) * self.mean


def work(model: Model, *, length: int, share: float | None = None, beside: float = 1.0) -> Work:
    """For texts of `length` tokens on each side."""
    source, target = (2 * passed(model, of_source=of_source) for of_source in (True, False))
    scores = {True: 0.0, False: 0.0}
    for path, module in model.named_modules(remove_duplicate=False):
        scores[path.startswith("reader")] += 4 * count_scores(model, path, module, length=length)
    if is_head(model.writer) and model.writer.queries_reader:  # its queries pass the layers of the reader
        target, scores[False] = target + source, scores[True]
    return Work(source + scores[True], target + scores[False], sum(scores.values()), share, beside)


def count_scores(model: Model, path: str, module: nn.Module, *, length: int) -> int:
    """Keys that a query of an attention meets, times the width of all its heads; 0 for every other module."""
    if isinstance(module, Attention):
        keys, window = module.count_keys(length), window_of(model, path)
        return module.width * (keys if window is None else min(keys, 2 * window + 1))
    if not path.endswith(".cross"):
        return 0
    # In recurrent and convolutional writers attention is as wide as the matrix of its queries.
    return length * max((int(parameter.shape[0]) for parameter in module.parameters()), default=0)


def window_of(model: Model, path: str) -> int | None:
    """Keys that self-attention may see on each side; None: all."""
    stack, between, rest = path.partition(".blocks.")
    if not between or not path.endswith(".self"):
        return None
    windows: Any = model.get_submodule(stack).windows
    return windows[int(rest.partition(".")[0])]
