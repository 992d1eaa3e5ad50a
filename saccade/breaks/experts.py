"""Breaks of the mixture of experts: gate, experts, load balancing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.blocks import experts
from saccade.layers.blocks.experts import Gate, GateOutput, InterLayerExperts, Routing


def pretend_training(patch: Patch, value: bool) -> None:
    """Let gates choose as in training, or as at inference."""

    def forward(original: Callable[..., GateOutput], self: Gate, x: Tensor) -> GateOutput:
        before, self.training = self.training, value
        try:
            return original(self, x)
        finally:
            self.training = before

    patch.replace(Gate.forward, forward)


@break_code("experts-without-noise", "The gate of a mixture of experts has no noise in training.")
def drop_noise(patch: Patch) -> None:
    pretend_training(patch, False)


@break_code("noise-at-inference", "The gate of a mixture of experts is noisy at inference too.")
def keep_noise(patch: Patch) -> None:
    pretend_training(patch, True)


@break_code("experts-weigh-the-same", "The chosen experts are averaged instead of weighted by their gate values.")
def weigh_the_same(patch: Patch) -> None:
    def forward(original: Callable[..., GateOutput], self: Gate, x: Tensor) -> GateOutput:
        found = original(self, x)
        return found._replace(weights=0 * found.weights + 1 / self.top_k)

    patch.replace(Gate.forward, forward)


@break_code("one-expert-for-all", "Every position gets the first expert, whatever the gate chooses.")
def use_the_first(patch: Patch) -> None:
    def multiply(original: Any, x: Tensor, weight: Tensor, bias: Any, chosen: Tensor) -> Tensor:
        y: Tensor = original(x, weight, bias, 0 * chosen)
        return y

    patch.replace(experts.multiply_by_experts, multiply)


@break_code("experts-left-out", "Recurrent layers do not use the experts below them.")
def leave_out(patch: Patch) -> None:
    patch.replace(InterLayerExperts.route, lambda original, self, number, x: (x, original(self, number, x)[1]))


@break_code("experts-not-balanced", "The load-balancing loss is 0.")
def drop_balance(patch: Patch) -> None:
    patch.replace(experts.balance_loss, lambda original, usages: 0 * original(usages))


@break_code("load-counts-padding", "The load of experts counts padding.")
def count_padding(patch: Patch) -> None:
    patch.replace(Routing.compute_usage, lambda original, self: original(self._replace(mask=None)))
