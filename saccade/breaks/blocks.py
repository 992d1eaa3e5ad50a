"""Breaks of heads, sublayers, residuals, norms and stacks, and of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from saccade.breaks.attention import change_weights
from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.layers import record
from saccade.layers.attention import masks, multihead
from saccade.layers.attention.masks import Mask
from saccade.layers.attention.multihead import CrossAttention, HeadProjection, SelfAttention, _AttentionHeads
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.norm import LayerNorm
from saccade.train import schedule

# ---- heads


@break_code("heads-share-their-matrices", "All heads use the matrices of the first one.")
def share_matrices(patch: Patch) -> None:
    def project(original: Any, self: HeadProjection, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part[:, :, :1].expand_as(part).contiguous() for part in original(self, x))

    patch.replace(HeadProjection.forward, project)


@break_code("values-of-another-head", "Each head sums the values of the head before it.")
def use_values_of_another_head(patch: Patch) -> None:
    def attend(
        original: Any, self: _AttentionHeads, layer: Any, query: Tensor, key: Tensor, value: Tensor, **how: Any
    ) -> Tensor:
        found: Tensor = original(self, layer, query, key, value.roll(1, 2), **how)
        return found

    patch.replace(_AttentionHeads.forward, attend)


@break_code("output-matrix-dropped", "Concatenated heads are not multiplied by W_O.")
def drop_output_matrix(patch: Patch) -> None:
    def attend(original: Any, self: _AttentionHeads, *args: Any, **how: Any) -> Tensor:
        out, self.out = self.out, nn.Identity()
        y: Tensor = original(self, *args, **how)
        self.out = out
        return y if y.shape[-1] == get_width(out, y) else y[..., : get_width(out, y)]

    patch.replace(_AttentionHeads.forward, attend)


def get_width(out: Any, y: Tensor) -> int:
    return int(getattr(out, "out_features", y.shape[-1]))


@break_code("heads-of-full-width", "Every head has the width of the model, whatever the form.")
def widen_heads(patch: Patch) -> None:
    patch.replace(multihead.get_head_dim, lambda original, dim, *, heads, form: dim)


@break_code("recorded-weights-of-another-head", "Recorded weights are stored under the wrong head.")
def record_another_head(patch: Patch) -> None:
    patch.replace(
        record.record_weights, lambda original, module, weights: original(module, weights.roll(1, 1).contiguous())
    )


@break_code("only-the-first-head-recorded", "Recorded weights are those of the first head for all heads.")
def record_the_first_head(patch: Patch) -> None:
    patch.replace(
        record.record_weights, lambda original, module, weights: original(module, weights[:, :1].expand_as(weights))
    )


# ---- who attends to whom


@break_code("attention-to-itself", "Each query gives all weight to its own position.")
def attend_to_itself(patch: Patch) -> None:
    def compute(values: Tensor, mask: Tensor | None) -> Tensor:
        own = torch.eye(*values.shape[-2:], dtype=torch.bool).expand(values.shape)
        own = torch.where(own.any(-1, keepdim=True), own, torch.arange(values.shape[-1]) == 0)
        return own.to(values.dtype) + 0 * values.nan_to_num(0.0, 0.0, 0.0)

    change_weights(patch, compute)


def limit_self_attention(patch: Patch, extra: Mask) -> None:
    def run(original: Any, self: SelfAttention, x: Tensor, *, mask: Mask | None = None, **how: Any) -> Tensor:
        found: Tensor = original(self, x, mask=extra if mask is None else mask & extra, **how)
        return found

    patch.replace(SelfAttention.forward, run)


@break_code("self-attention-always-causal", "Self-attention looks back only, in encoders too.")
def always_causal(patch: Patch) -> None:
    limit_self_attention(patch, masks.causal())


@break_code("self-attention-of-neighbours", "Self-attention sees two positions on each side only.")
def always_near(patch: Patch) -> None:
    limit_self_attention(patch, masks.window(2))


@break_code("cross-attention-dropped", "The decoder does not attend to the encoder: cross-attention returns zeros.")
def drop_cross_attention(patch: Patch) -> None:
    patch.replace(CrossAttention.forward, lambda original, self, x, memory, **how: 0 * original(self, x, memory, **how))


@break_code("memory-projected-at-every-step", "Keys and values of memory are computed again at every decoding step.")
def project_memory_again(patch: Patch) -> None:
    def run(original: Any, self: CrossAttention, x: Tensor, memory: Any, **how: Any) -> Tensor:
        self.memory(x.new_zeros(1, 1, self.memory.weight.shape[-1] * (len(self.memory.weight) ** self.memory.split)))
        found: Tensor = original(self, x, memory, **how)
        return found

    patch.replace(CrossAttention.forward, run)


# ---- sublayers


@break_code("residual-dropped", "Sublayers have no residual connection.")
def drop_residual(patch: Patch) -> None:
    def build(original: Any, self: Residual, norm: nn.Module, **how: Any) -> None:
        original(self, norm, **{**how, "adds": False})

    patch.replace(Residual.__init__, build)


@break_code("residual-always-added", "Sublayers have a residual connection even if the recipe has none.")
def always_add_residual(patch: Patch) -> None:
    def build(original: Any, self: Residual, norm: nn.Module, **how: Any) -> None:
        original(self, norm, **{**how, "adds": True})

    patch.replace(Residual.__init__, build)


@break_code("pre-norm-for-post-norm", "Post-norm sublayers normalize their input instead of the sum.")
def use_pre_norm(patch: Patch) -> None:
    patch.replace(Residual.begin_sublayer, lambda original, self, hidden, residual: (self.norm(hidden), hidden))
    patch.replace(Residual.end_sublayer, lambda original, self, hidden, residual: (residual + hidden, None))


@break_code("norm-before-the-sum", "Post-norm normalizes the sublayer's output before the residual is added.")
def normalize_before_the_sum(patch: Patch) -> None:
    def end(original: Any, self: Residual, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None] = original(self, hidden, residual)
        return found if self.pre_norm or residual is None else (residual + self.norm(hidden), None)

    patch.replace(Residual.end_sublayer, end)


@break_code("feedforward-dropped", "The feed-forward network returns zeros.")
def drop_feedforward(patch: Patch) -> None:
    patch.replace(FeedForward.forward, lambda original, self, x: 0 * original(self, x))


@break_code("feedforward-without-activation", "The feed-forward network is linear.")
def drop_activation(patch: Patch) -> None:
    patch.replace(FeedForward.forward, lambda original, self, x: self.down(self.up(x)))


@break_code("feedforward-mixes-positions", "The feed-forward network adds the mean of all positions.")
def mix_positions(patch: Patch) -> None:
    patch.replace(
        FeedForward.forward,
        lambda original, self, x: original(self, x) + x.mean(-2, keepdim=True) / len(self.up.weight),
    )


# ---- norms


def change_norm(patch: Patch, compute: Any) -> None:
    """Compute layer normalization by compute(norm, x)."""
    patch.set(LayerNorm, "forward", compute)


@break_code("norm-dropped", "Layer normalization returns its input.")
def drop_norm(patch: Patch) -> None:
    change_norm(patch, lambda self, x: x)


@break_code("norm-with-unbiased-variance", "Layer normalization divides the sum of squares by D - 1.")
def use_unbiased_variance(patch: Patch) -> None:
    def normalize(self: LayerNorm, x: Tensor) -> Tensor:
        spread = (x.var(-1, keepdim=True) + self.eps).sqrt()
        return self.weight * (x - x.mean(-1, keepdim=True)) / spread + self.bias

    change_norm(patch, normalize)


@break_code("norm-without-mean", "Layer normalization does not subtract the mean.")
def leave_out_mean(patch: Patch) -> None:
    def normalize(self: LayerNorm, x: Tensor) -> Tensor:
        return self.weight * x / (x.var(-1, correction=0, keepdim=True) + self.eps).sqrt() + self.bias

    change_norm(patch, normalize)


@break_code("norm-over-positions", "Layer normalization runs over the positions of a feature.")
def normalize_positions(patch: Patch) -> None:
    def normalize(self: LayerNorm, x: Tensor) -> Tensor:
        spread = (x.var(-2, correction=0, keepdim=True) + self.eps).sqrt()
        return self.weight * (x - x.mean(-2, keepdim=True)) / spread + self.bias

    change_norm(patch, normalize)


@break_code("norm-without-scale-and-shift", "Layer normalization does not apply its learned scale and shift.")
def leave_out_affine(patch: Patch) -> None:
    change_norm(patch, lambda self, x: nn.functional.layer_norm(x, self.normalized_shape, eps=self.eps))


# ---- stacks


def change_blocks(patch: Patch, choose: Callable[[list[nn.Module]], list[nn.Module]]) -> None:
    """Run stacks with the blocks choose(blocks) in place of their own."""

    def run(original: Any, self: TransformerStack, *args: Any, **how: Any) -> Any:
        blocks, windows = self.blocks, self.windows
        chosen = choose(list(blocks))
        self.blocks, self.windows = nn.ModuleList(chosen), windows[: len(chosen)]
        try:
            return original(self, *args, **how)
        finally:
            self.blocks, self.windows = blocks, windows

    patch.replace(TransformerStack.forward, run)


@break_code("first-block-repeated", "A stack applies its first block again and again.")
def repeat_first_block(patch: Patch) -> None:
    change_blocks(patch, lambda blocks: blocks[:1] * len(blocks))


@break_code("blocks-in-reverse", "A stack applies its last block first.")
def reverse_blocks(patch: Patch) -> None:
    change_blocks(patch, lambda blocks: blocks[::-1])


@break_code("one-block-only", "A stack applies its first block and leaves out the others.")
def run_one_block(patch: Patch) -> None:
    change_blocks(patch, lambda blocks: blocks[:1])


# ---- learning rate


@break_code("warmup-dropped", "The learning rate falls from the first step on.")
def drop_warmup(patch: Patch) -> None:
    patch.replace(
        schedule.inverse_sqrt_lr, lambda original, step, *, lr, dim, steps: original(step, lr=lr, dim=dim, steps=0)
    )


@break_code("learning-rate-stays-at-its-peak", "The learning rate does not fall after the warm-up.")
def stay_at_peak(patch: Patch) -> None:
    patch.replace(
        schedule.inverse_sqrt_lr,
        lambda original, step, *, lr, dim, steps: original(min(step, steps), lr=lr, dim=dim, steps=steps),
    )


@break_code("learning-rate-without-width", "The learning rate does not depend on the width of the model.")
def leave_out_width(patch: Patch) -> None:
    patch.replace(
        schedule.inverse_sqrt_lr,
        lambda original, step, *, lr, dim, steps: original(step, lr=lr, dim=dim, steps=steps) * math.sqrt(dim),
    )
