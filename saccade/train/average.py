"""Averages of weights: an exponential moving average during training, and the mean of checkpoints after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from saccade.config.schema import Average
from saccade.model.run import named_weights
from saccade.train.checkpoint import Checkpoint
from saccade.train.distributed.parts import copy_weight_parts, get_local

Weights = dict[str, Tensor]


class MovingAverage:
    """Exponential moving average of the weights: average += (1 - decay) (weights - average).

    The decay is at most (1 + step) / (10 + step), so that the initial weights are forgotten quickly.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        own = named_weights(model)  # these tensors are updated in place by the optimizer
        self.weights = {name: tensor.clone() for name, tensor in own.items()}
        floats = [name for name, tensor in own.items() if tensor.is_floating_point()]
        self._floats = [get_local(self.weights[name]) for name in floats], [get_local(own[name]) for name in floats]
        self._others = [(self.weights[name], own[name]) for name in own if name not in floats]

    @torch.no_grad()
    def update(self, *, step: int) -> None:
        rate = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self._floats, rate)
        for mean, own in self._others:
            mean.copy_(own)


@contextmanager
def swap_weights(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Use other weights in the model inside the block; with None, keep its own."""
    if weights is None:
        yield
        return
    before = {name: tensor.clone() for name, tensor in named_weights(model).items()}
    copy_weight_parts(model, weights)
    try:
        yield
    finally:
        copy_weight_parts(model, before)


def average_checkpoints(checkpoints: Sequence[Checkpoint], *, group: str) -> Weights:
    """Average the weights of several checkpoints (Vaswani et al. 2017, section 6.1); sums are in float64."""
    total: Weights = {}
    for checkpoint in checkpoints:
        for name, tensor in checkpoint.load_tensors(group).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    like = checkpoints[-1].load_tensors(group)
    return {name: (tensor / len(checkpoints)).to(like[name].dtype) for name, tensor in total.items()}


def select_steps(
    settings: Average, *, saved: Sequence[int], ranking: Mapping[int, float], lower_is_better: bool
) -> list[int]:
    """Select the steps whose checkpoints are averaged: the newest n, or the n best by the validation metric."""
    if not settings.is_enabled:
        return []
    if not settings.uses_best:
        return sorted(saved, reverse=True)[: settings.n]
    known = [step for step in saved if step in ranking]
    return sorted(known, key=lambda step: (ranking[step] if lower_is_better else -ranking[step], -step))[: settings.n]
