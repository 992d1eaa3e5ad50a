"""Breaks of deep recurrent translation systems: connections past layers, directions, contexts, penalties, rewards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.blocks import recurrence, recurrent
from saccade.layers.blocks.recurrent import Connections
from saccade.predict import unknown
from saccade.predict.search import greedy
from saccade.train.objectives import reward


@break_code("no-fast-forward-connections", "Fast-forward connections pass on the output of a layer, not its input.")
def drop_fast_forward(patch: Patch) -> None:
    def forward(original: Any, self: Connections, number: int, below: Tensor, above: Tensor) -> Tensor:
        y: Tensor = original(self, number, 0 * below if self.joins else below, above)
        return y

    patch.replace(Connections.forward, forward)


@break_code("no-recurrent-residuals", "Recurrent layers have no residual connections.")
def drop_residuals(patch: Patch) -> None:
    def forward(original: Any, self: Connections, number: int, below: Tensor, above: Tensor) -> Tensor:
        return original(self, number, below, above) if self.joins else above

    patch.replace(Connections.forward, forward)


@break_code("one-direction-in-turn", "All layers of an encoder read from left to right, none in turn.")
def read_in_one_direction(patch: Patch) -> None:
    patch.replace(recurrent.run_packed_layer, lambda original, layer, packed, reversal: original(layer, packed, None))


@break_code("one-direction-at-the-bottom", "A bidirectional layer of an encoder returns zeros for one direction.")
def drop_direction(patch: Patch) -> None:
    def run(original: Any, layer: Any, *rest: Any) -> Any:
        above, last = original(layer, *rest)
        if not layer.bidirectional:
            return above, last
        return torch.cat((above.chunk(2, -1)[0], torch.zeros_like(above.chunk(2, -1)[1])), -1), last

    patch.replace(recurrent.run_packed_layer, run)


@break_code("context-in-one-layer", "Only the lowest layer of a decoder gets the context, the others get zeros.")
def drop_contexts(patch: Patch) -> None:
    def run(original: Any, layers: Any, x: Tensor, hidden: Any, context: Any, **rest: Any) -> Any:
        return original(layers, x, hidden, None if context is None else 0 * context, **rest)

    patch.replace(recurrence.run_layers, run)


@break_code("unknown-words-by-position", "The n-th word of an output replaces an unknown one by the n-th source word.")
def replace_by_position(patch: Patch) -> None:
    def replace_words(original: Any, ids: Any, alignment: Any, **rest: Any) -> str:
        diagonal = [[float(i == j) for j in range(len(row))] for i, row in enumerate(alignment)]
        text: str = original(ids, diagonal, **rest)
        return text

    patch.replace(unknown.replace_unknown_words, replace_words)


@break_code("no-length-penalty", "Beam search does not divide by the length penalty.")
def drop_length_penalty(patch: Patch) -> None:
    patch.replace(greedy.compute_length_penalty, lambda original, length, alpha: original(length, 0.0))


@break_code("no-coverage-penalty", "Beam search does not add the coverage penalty.")
def drop_coverage_penalty(patch: Patch) -> None:
    patch.replace(greedy.compute_coverage_penalty, lambda original, attention: 0 * original(attention))


@break_code("reward-is-precision", "The reward of RL does not punish missing words: precision in place of GLEU.")
def reward_precision(patch: Patch) -> None:
    def compute(original: Any, outputs: Tensor, reference: Tensor) -> Tensor:
        ours, theirs = reward.count_ngrams(outputs), reward.count_ngrams(reference[:, None])
        score: Tensor = original(outputs, reference) * torch.maximum(ours, theirs) / ours.clamp(min=1)
        return score

    patch.replace(reward.compute_gleu, compute)
