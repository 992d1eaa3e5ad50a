"""Breaks of pretraining, of what a training takes over from it, and of residual connections and norms."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.blocks import residual
from saccade.layers.blocks.residual import Residual
from saccade.model.writers import tokens
from saccade.model.writers.labels import Head
from saccade.train import optimizer
from saccade.train.transfer import warm


@break_code("init-copies-nothing", "A training with `init` starts with random weights.")
def copy_nothing(patch: Patch) -> None:
    patch.replace(warm.copy_matching_weights, lambda original, *args, **settings: warm.TransferCounts(1, 1))


@break_code("freeze-ignored", "Parts that `freeze` names are trained.")
def freeze_nothing(patch: Patch) -> None:
    patch.replace(optimizer.freeze, lambda original, model, parts: None)


@break_code("head-without-activation", "The hidden layer of a classification head is linear.")
def drop_activation(patch: Patch) -> None:
    def compute(original: Any, self: Head, states: Tensor) -> Tensor:
        self.activation = lambda x: x
        scores: Tensor = original(self, states)
        return scores

    patch.replace(Head.compute_scores, compute)


@break_code("unshifted-targets", "A decoder reads the token that it has to predict, not the one before it.")
def keep_targets(patch: Patch) -> None:
    patch.replace(tokens.shift_right, lambda original, ids, start, mask=None: ids)


@break_code("pre-norm-ignored", "Every sublayer is post-norm, whatever the recipe says.")
def use_post_norm(patch: Patch) -> None:
    def init(original: Any, self: Residual, norm: nn.Module, *, order: str, **settings: Any) -> None:
        original(self, norm, order="post", **settings)

    patch.replace(Residual.__init__, init)


@break_code("post-norm-ignored", "Every sublayer is pre-norm, whatever the recipe says.")
def use_pre_norm(patch: Patch) -> None:
    def init(original: Any, self: Residual, norm: nn.Module, *, order: str, **settings: Any) -> None:
        original(self, norm, order="pre", **settings)

    patch.replace(Residual.__init__, init)


@break_code("no-residual", "Sublayers have no residual connection.")
def drop_residual(patch: Patch) -> None:
    def init(original: Any, self: Residual, norm: nn.Module, *, adds: bool = True, **settings: Any) -> None:
        original(self, norm, adds=False, **settings)

    patch.replace(Residual.__init__, init)


@break_code("norm-skipped", "Pre-norm sublayers get the residual stream, limited to 10, in place of its norm.")
def skip_norm(patch: Patch) -> None:
    def add(original: Any, hidden: Tensor, stream: Tensor | None, *args: Any) -> tuple[Tensor, Tensor]:
        total: Tensor = original(hidden, stream, *args)[1]
        return total.clamp(-10, 10), total

    patch.replace(residual.add_and_normalize, add)
