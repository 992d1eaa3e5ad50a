"""Floating-point operations for a token.

A matrix product costs 2 for each of its numbers and each token that passes it: one product, one sum. Attention adds
4 x keys x width in each layer, 2 for the scores and 2 for the mean of the values; of causal attention all scores count,
as in MFU. The backward pass costs twice the forward pass, and `recompute` one more forward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from saccade.layers.attention.local import LocalAttention
from saccade.layers.attention.lsh import LshAttention
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.model.writers.permuted import PermutedWriter
from saccade.plan import activations
from saccade.plan.counts import passed

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


def work(model: nn.Module, *, length: int, share: float | None = None, beside: float = 1.0) -> Work:
    """For texts of `length` tokens on each side."""
    source, target = (2 * passed(model, of_source=of_source) for of_source in (True, False))
    scores = {True: 0.0, False: 0.0}
    for path, module in model.named_modules(remove_duplicate=False):
        scores[path.startswith("reader")] += 4 * keys_of(model, path, length) * width_of(path, module)
    if isinstance(model.get_submodule("writer"), PermutedWriter):  # what is asked passes the layers of the reader too
        target, scores[False] = target + source, scores[True]
    return Work(source + scores[True], target + scores[False], sum(scores.values()), share, beside)


def width_of(path: str, module: nn.Module) -> int:
    """All heads of attention together; 0 for everything else."""
    if isinstance(module, SelfAttention | CrossAttention):
        return activations.width_of(module)
    if isinstance(module, LocalAttention | LshAttention):
        return int(module.out.in_features)
    if path.endswith(".cross"):  # of recurrent and convolutional writers: as wide as the matrix of their queries
        return max(int(parameter.shape[0]) for parameter in module.parameters()) if [*module.parameters()] else 0
    return 0


def keys_of(model: nn.Module, path: str, length: int) -> int:
    """How many keys a query meets: all, or those in a window or in chunks."""
    module = model.get_submodule(path)
    if isinstance(module, LocalAttention):  # a chunk and the one before it
        return length if module.chunk is None else min(length, 2 * module.chunk)
    if isinstance(module, LshAttention):  # the same in each round
        hashing = module.hashing
        return length if length <= hashing.chunk else 2 * hashing.chunk * hashing.rounds
    stack, between, rest = path.partition(".blocks.")
    if not between or not path.endswith(".self"):
        return length
    windows: Any = model.get_submodule(stack).windows
    window = windows[int(rest.partition(".")[0])]
    return length if window is None else min(length, 2 * window + 1)
