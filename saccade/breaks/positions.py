"""Breaks of positional encodings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers.attention import positions
from saccade.layers.attention.multihead import _AttentionHeads
from saccade.layers.attention.positions import Alibi, Bucketed, Learned, Rotary, Shaw, Sinusoidal
from saccade.model.readers.tokens import Embedding


@break_code("positions-dropped", "Positions at the input are zero.")
def drop_positions(patch: Patch) -> None:
    for kind in (Sinusoidal, Learned):
        patch.replace(kind.forward, lambda original, self, at: 0 * original(self, at))


@break_code("positions-off-by-one", "The first position is encoded as the second, and so on.")
def shift_positions(patch: Patch) -> None:
    for kind in (Sinusoidal, Learned):
        patch.replace(kind.forward, lambda original, self, at: original(self, at + 1))


@break_code("positions-always-added", "Positions are added to word vectors even if the recipe has none.")
def always_add_positions(patch: Patch) -> None:
    def embed(original: Any, self: Embedding, ids: Tensor, at: Tensor | None = None) -> Tensor:
        x: Tensor = original(self, ids, at)
        places = torch.arange(ids.shape[1])[None] if at is None else at
        return x if self.positions is not None else x + Sinusoidal(x.shape[-1])(places).to(x.dtype)

    patch.replace(Embedding.forward, embed)


@break_code("positions-before-words", "Concatenated positions come before the word vector instead of after it.")
def concatenate_in_front(patch: Patch) -> None:
    def embed(original: Any, self: Embedding, ids: Tensor, at: Tensor | None = None) -> Tensor:
        x: Tensor = original(self, ids, at)
        return x.roll(x.shape[-1] - self.tokens.embedding_dim, -1) if self.concat else x

    patch.replace(Embedding.forward, embed)


@break_code("embeddings-not-scaled", "Word vectors are not multiplied by the root of the width.")
def leave_out_embedding_scale(patch: Patch) -> None:
    def embed(original: Any, self: Embedding, ids: Tensor, at: Tensor | None = None) -> Tensor:
        scale, self.scale = self.scale, 1.0
        x: Tensor = original(self, ids, at)
        self.scale = scale
        return x

    patch.replace(Embedding.forward, embed)


@break_code("sinusoids-of-base-1000", "The frequencies of positions go down to 1/1000 instead of 1/10000.")
def change_base(patch: Patch) -> None:
    patch.replace(
        positions._compute_frequencies, lambda original, count, device, **how: original(count, device, **how) ** 0.75
    )


@break_code("sines-and-cosines-swapped", "Even columns of sinusoids are cosines, odd ones are sines.")
def swap_sines(patch: Patch) -> None:
    def encode(original: Any, self: Sinusoidal, at: Tensor) -> Tensor:
        found: Tensor = original(self, at)
        if self.interleaved:
            return found.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return found.roll(self.pairs, -1)

    patch.replace(Sinusoidal.forward, encode)


@break_code("sinusoids-always-interleaved", "The concatenated layout of sinusoids is not supported.")
def always_interleave(patch: Patch) -> None:
    def encode(original: Any, self: Sinusoidal, at: Tensor) -> Tensor:
        interleaved, self.interleaved = self.interleaved, True
        found: Tensor = original(self, at)
        self.interleaved = interleaved
        return found

    patch.replace(Sinusoidal.forward, encode)


@break_code("sinusoids-of-tensor2tensor", "Sinusoids always have the frequencies of tensor2tensor.")
def always_other_frequencies(patch: Patch) -> None:
    def encode(original: Any, self: Sinusoidal, at: Tensor) -> Tensor:
        step, self.exponent_step = self.exponent_step, 1 / max(self.pairs - 1, 1)
        found: Tensor = original(self, at)
        self.exponent_step = step
        return found

    patch.replace(Sinusoidal.forward, encode)


@break_code("sinusoids-of-the-paper", "The frequencies of tensor2tensor are not supported.")
def always_the_papers_frequencies(patch: Patch) -> None:
    def encode(original: Any, self: Sinusoidal, at: Tensor) -> Tensor:
        step, self.exponent_step = self.exponent_step, 1 / self.pairs
        found: Tensor = original(self, at)
        self.exponent_step = step
        return found

    patch.replace(Sinusoidal.forward, encode)


@break_code("rotary-without-rotation", "Rotary positions do not rotate.")
def leave_out_rotation(patch: Patch) -> None:
    patch.replace(Rotary.forward, lambda original, self, x, at: x)


@break_code("relative-positions-dropped", "Terms of relative positions are not added to the scores.")
def drop_terms(patch: Patch) -> None:
    for kind in (Shaw, Bucketed, Alibi):
        patch.replace(kind.forward, lambda original, self, *where: 0 * original(self, *where))


@break_code("relative-positions-reversed", "Relative positions count from the key to the query.")
def reverse_distances(patch: Patch) -> None:
    patch.replace(positions._compute_distances, lambda original, q_pos, k_pos: -original(q_pos, k_pos))


@break_code("score-terms-unscaled", "Terms of the scores get queries that are not scaled.")
def leave_out_query_scale(patch: Patch) -> None:
    def attend(original: Any, self: _AttentionHeads, *args: Any, **how: Any) -> Tensor:
        term, scale = self.term, self.scale
        hook = None if term is None else term.register_forward_pre_hook(lambda _, given: (given[0] / scale, *given[1:]))
        y: Tensor = original(self, *args, **how)
        if hook is not None:
            hook.remove()
        return y

    patch.replace(_AttentionHeads._attend_explicitly, attend)
