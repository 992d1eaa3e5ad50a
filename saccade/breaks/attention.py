"""Breaks of attention itself, in every implementation of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.kernels.cpu import native, step_attention
from saccade.layers.attention import backends, columns, local, lsh, scores
from saccade.layers.attention.local import LocalAttention
from saccade.layers.blocks import repeated_passes
from saccade.layers.record import is_recording, record_weights
from saccade.layers.vision.grid_attention import GridAttention

Weights = Callable[[Tensor, Tensor | None], Tensor]
MAX_MASKED = -1e4  # scores at or below it are masks


def change_weights(patch: Patch, compute: Weights) -> None:
    """Compute attention weights from scores (..., Q, K) and a mask by `compute`, in every implementation.

    Implementations that never hold the weights (SDPA, C kernels) are replaced by those that do.
    """
    use_reference_attention(patch)
    patch.replace(scores.masked_softmax, lambda original, values, mask: compute(values, mask))
    patch.replace(columns.softmax, lambda original, values: compute(values.mT, None).mT)

    def compute_scores(original: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Scores of LSH attention whose softmax has these weights."""
        found: Tensor = original(*args, **kwargs)
        weights = compute(found, found > MAX_MASKED)
        return torch.where(found > MAX_MASKED, weights.clamp(min=1e-30).log(), found)

    patch.replace(lsh._compute_scores, compute_scores)


def use_reference_attention(patch: Patch) -> None:
    """Compute every attention by `attend`, which holds its scores and weights."""

    def sdpa_attention(
        original: Any, *parts: Tensor, mask: Any, q_pos: Tensor, k_pos: Tensor, **settings: Any
    ) -> Tensor:
        allowed = None if mask is None else mask.to_dense(q_pos, k_pos)[:, None]
        return backends.explicit_attention(*parts, **settings, allowed=allowed)[0]

    def attend_few(original: Any, query: Tensor, key: Tensor, value: Tensor, *, scale: float, keep: Any) -> Tensor:
        allowed = None if keep is None else keep[:, None, None]
        heads = (x.transpose(1, 2) for x in (query, key, value))
        return backends.explicit_attention(*heads, scale=scale, allowed=allowed)[0].transpose(1, 2)

    def attend_one(original: Any, query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
        return attend_few(None, query, key, value, scale=scale, keep=None)

    def attend_heads(original: Any, heads: Any, query: Tensor, key: Tensor, value: Tensor, bias: Any) -> Tensor:
        grouped = query if len(query) == len(key) else query.reshape(len(key), -1, *query.shape[2:])
        parts = (x.transpose(1, 2) for x in (grouped, key, value))
        allowed = None if bias is None else bias > MAX_MASKED
        y = backends.explicit_attention(*parts, scale=heads.scale, allowed=allowed)[0]
        out: Tensor = heads.out(y.transpose(1, 2).reshape(*query.shape[:2], -1))
        return out

    def attend_grid(original: Any, self: GridAttention, x: Tensor) -> Tensor:
        query, key, value = (project(x).flatten(2).mT for project in (self.query, self.key, self.value))
        y, weights = scores.attend(query, key, value, score=scores.dot)
        if is_recording():
            record_weights(self, weights[:, None])
        return x + self.gamma * self.output(y.mT.contiguous().unflatten(2, x.shape[2:]))

    patch.replace(backends.sdpa_attention, sdpa_attention)
    patch.replace(step_attention.attend_few_queries, attend_few)
    patch.replace(step_attention.attend_one_query, attend_one)
    patch.replace(repeated_passes.attend_heads, attend_heads)
    patch.replace(GridAttention.forward, attend_grid)
    patch.replace(native.explain_missing, lambda original: "the C kernels are switched off")
    for module in native.load_library, step_attention.load_kernel:
        module.cache_clear()
        patch.undo.callback(module.cache_clear)


@break_code("uniform-attention", "Attention ignores its query and keys: all keys that are not masked weigh the same.")
def make_uniform(patch: Patch) -> None:
    softmax = torch.softmax

    def compute(values: Tensor, mask: Tensor | None) -> Tensor:
        flat = torch.where(values > MAX_MASKED, 0 * values.detach(), values.detach())
        flat = flat if mask is None else flat.masked_fill(~mask, -torch.inf)
        return softmax(flat, -1).nan_to_num(0.0) + 0 * values.nan_to_num(0.0, 0.0, 0.0)

    change_weights(patch, compute)
    patch.replace(local.chunked_attention, lambda original, query, *args, **how: original(0 * query, *args, **how))

    def step(original: Any, self: LocalAttention, *args: Any, **how: Any) -> Tensor:
        hook = self.project.register_forward_hook(lambda module, given, parts: (0 * parts[0], *parts[1:]))
        with hook:
            y: Tensor = original(self, *args, **how)
        return y

    patch.replace(LocalAttention.step, step)


@break_code("attention-to-the-first-key", "Attention gives all weight to the first key that is not masked.")
def attend_to_the_first(patch: Patch) -> None:
    def compute(values: Tensor, mask: Tensor | None) -> Tensor:
        allowed = (values > MAX_MASKED) if mask is None else mask.expand(values.shape) & (values > MAX_MASKED)
        first = allowed & (allowed.cumsum(-1) == 1)
        return first.to(values.dtype) + 0 * values.nan_to_num(0.0, 0.0, 0.0)

    change_weights(patch, compute)


@break_code("attention-off-by-one", "Attention weights are those of the neighbouring key.")
def attend_to_the_neighbour(patch: Patch) -> None:
    use_reference_attention(patch)
    patch.replace(scores.masked_softmax, lambda original, values, mask: original(values.roll(1, -1), mask))


@break_code("attention-without-gradient", "No gradient passes through attention weights.")
def detach_weights(patch: Patch) -> None:
    use_reference_attention(patch)
    patch.replace(scores.masked_softmax, lambda original, values, mask: original(values.detach(), mask))


@break_code("unmasked-attention", "Attention ignores its mask: it looks ahead and at padding.")
def ignore_masks(patch: Patch) -> None:
    use_reference_attention(patch)
    patch.replace(scores.masked_softmax, lambda original, values, mask: original(values, None))


@break_code("softmax-over-queries", "The softmax of attention runs over queries instead of keys.")
def normalize_queries(patch: Patch) -> None:
    def compute(original: Any, values: Tensor, mask: Tensor | None) -> Tensor:
        weights: Tensor = values.softmax(-2)
        return weights if mask is None else weights.masked_fill(~mask, 0.0)

    use_reference_attention(patch)
    patch.replace(scores.masked_softmax, compute)


@break_code("doubled-values", "Attention returns twice the weighted sum of its values.")
def double_values(patch: Patch) -> None:
    def attend(original: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        y, weights = original(*args, **kwargs)
        return 2 * y, weights

    use_reference_attention(patch)
    patch.replace(scores.attend, attend)
