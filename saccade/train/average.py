"""Means of weights: the moving average during training, and the mean of several checkpoints after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from saccade.config.schema import Average
from saccade.model.run import named_weights, put_weights
from saccade.train.checkpoint import Checkpoint

Weights = dict[str, Tensor]


class MovingAverage:
    """The exponential moving average of weights: average += (1 - decay) (weights - average).

    The decay begins small, (1 + step) / (10 + step), so that the first random weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        own = named_weights(model)  # these very tensors are updated in place as training goes on
        self.weights = {name: tensor.clone() for name, tensor in own.items()}
        floats = [name for name, tensor in own.items() if tensor.is_floating_point()]
        self._floats = [self.weights[name] for name in floats], [own[name] for name in floats]
        self._others = [(self.weights[name], own[name]) for name in own if name not in floats]

    @torch.no_grad()
    def update(self, *, step: int) -> None:
        rate = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self._floats, rate)
        for mean, own in self._others:
            mean.copy_(own)

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in weights.items():
            self.weights[name].copy_(tensor)


@contextmanager
def wearing(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """The model with other weights for a while; with None, its own."""
    if weights is None:
        yield
        return
    before = {name: tensor.clone() for name, tensor in named_weights(model).items()}
    put_weights(model, weights)
    try:
        yield
    finally:
        put_weights(model, before)


def mean_of(checkpoints: Sequence[Checkpoint], *, group: str) -> Weights:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64."""
    total: Weights = {}
    for checkpoint in checkpoints:
        for name, tensor in checkpoint.tensors(group).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    like = checkpoints[-1].tensors(group)
    return {name: (tensor / len(checkpoints)).to(like[name].dtype) for name, tensor in total.items()}


def chosen_steps(settings: Average, *, saved: Sequence[int], ranking: Mapping[int, float], lower: bool) -> list[int]:
    """The steps whose checkpoints `average` takes: the newest n, or the n best by the validation metric."""
    if not settings.takes_any:
        return []
    if not settings.takes_best:
        return sorted(saved, reverse=True)[: settings.n]
    known = [step for step in saved if step in ranking]
    return sorted(known, key=lambda step: (ranking[step] if lower else -ranking[step], -step))[: settings.n]
