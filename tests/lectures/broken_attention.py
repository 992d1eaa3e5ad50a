"""Deliberately broken attention: scores, columns, masks, heads."""

from functools import partial

import torch
from broken_registry import breaks, puts
from torch import nn

from saccade.layers.attention import backends as kernels
from saccade.layers.attention import columns as layer_columns
from saccade.layers.attention import masks as layer_masks
from saccade.layers.attention import scores as layer_attention
from saccade.layers.attention.columns import ColumnLayer, head_forward
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.scores import Additive, AttentionLayer, attend, dot, scaled_dot
from saccade.layers.blocks import feedforward
from saccade.layers.blocks.transformer import TransformerStack
from saccade.lectures import trace
from saccade.lectures.attention import attention, columns, heads, masks, scores


def unscaled(query, key, value, score=None, mask=None):
    return attend(query, key, value, score=dot, mask=mask)


def always_scaled(query, key, value, score=None):
    return attend(query, key, value)


def doubled(query, key, value, score=None):
    y, weights = attend(query, key, value, score=score)
    return 2 * y, weights


# ---- attention


def with_relu(self, query, key):
    return self.energy(torch.relu(self.query(query).unsqueeze(-2) + self.key(key).unsqueeze(-3))).squeeze(-1)


def without_query(self, query, key):
    return self.energy(torch.tanh(self.query(query.detach()).unsqueeze(-2) + self.key(key).unsqueeze(-3))).squeeze(-1)


puts(14, owner=Additive, forward=with_relu)
puts(15, owner=attention, attend=lambda query, key, value, mask: attend(query, key, value))
puts(16, 35, owner=attention, attend=doubled)
puts(18, owner=Additive, forward=without_query)
puts(23, owner=attention, attend=lambda query, key, value: (value[-1:], None))
puts(34, 44, owner=attention, attend=always_scaled)
puts(40, 41, 45, owner=attention, attend=unscaled)
puts(43, owner=attention, masked_softmax=lambda scores, mask: scores.softmax(-2))
puts(
    46,
    owner=attention,
    AttentionLayer=lambda dim, key_dim, value_dim: AttentionLayer(dim, key_dim=value_dim, value_dim=key_dim),
)


@breaks(24)
def line_by_line(patch):
    def broken(query, key, value, score):
        lines = attend(query, key, value, score=score)[1].reshape(3, 5)
        weights = (lines / lines.sum(1, keepdim=True)).reshape(1, 15)
        return weights @ value, weights

    patch.setattr(attention, "attend", broken)


# ---- scores

puts(36, owner=scores, dot=lambda query, key: query[..., :5] @ key[..., :5].mT)
puts(37, 38, 39, owner=scores, scaled_dot=dot)
puts(48, owner=trace, scaled_dot=dot)


class WithOutput(AttentionLayer):
    def __init__(self, dim, *, key_dim, value_dim):
        super().__init__(dim, key_dim=key_dim, value_dim=value_dim)
        self.out = nn.Linear(value_dim, dim)


puts(47, owner=scores, AttentionLayer=WithOutput)

# ---- columns

puts(50, owner=columns, dot=scaled_dot)
puts(51, owner=columns, softmax=lambda m: m.softmax(1))
puts(54, owner=layer_columns, argmax=lambda m: m.softmax(0))


@breaks(49)
def items_are_rows(patch):
    whole = ColumnLayer.forward
    patch.setattr(ColumnLayer, "forward", lambda self, h: whole(self, h) + torch.arange(h.shape[1]))


@breaks(52)
def parts_in_another_order(patch):
    def broken(h, stacked, hard):
        head = head_forward(h, stacked, hard)
        return head._replace(query=head.key, key=head.query)

    patch.setattr(columns, "head_forward", broken)


@breaks(53)
def another_activation(patch):
    patch.setitem(feedforward.ACTIVATIONS, "sigmoid", torch.tanh)


@breaks(55)
def another_backward(patch):
    whole = layer_columns.head_backward
    patch.setattr(layer_columns, "head_backward", lambda grad, head, hard: whole(grad, head, True))


# ---- order, masks


@breaks(58, 59)
def always_causal(patch):
    whole = SelfAttention.forward
    causal = layer_masks.causal()
    patch.setattr(SelfAttention, "forward", lambda self, x, **how: whole(self, x, mask=causal))


@breaks(86)
def always_near(patch):
    whole = SelfAttention.forward
    near = layer_masks.window(3)
    patch.setattr(SelfAttention, "forward", lambda self, x, **how: whole(self, x, mask=near))


@breaks(79)
def mixing_network(patch):
    whole = feedforward.FeedForward.forward
    patch.setattr(feedforward.FeedForward, "forward", lambda self, x: whole(self, x) + x.mean(1, keepdim=True))


@breaks(113)
def other_values(patch):
    whole = CrossAttention.project_memory

    def broken(self, states):
        kept = whole(self, states)
        return type(kept)(kept.keys, 2 * kept.values)

    patch.setattr(CrossAttention, "project_memory", broken)


puts(57, owner=layer_attention, scaled_dot=dot)
puts(61, 68, owner=TransformerStack, build_mask=lambda self, keep, window, segments=None: None)
puts(62, owner=masks, masked_softmax=masks.mask_and_normalize)


@breaks(69)
def weights_not_normalised(patch):
    whole = kernels.explicit_attention

    def broken(query, key, value, **settings):
        y, weights = whole(query, key, value, **settings)
        return y, 2 * weights

    patch.setattr(kernels, "explicit_attention", broken)


# ---- heads

puts(63, owner=heads, attend=unscaled)
puts(64, owner=heads, SelfAttention=partial(SelfAttention, scale=False))
puts(65, owner=heads, SelfAttention=partial(SelfAttention, form="full"))


@breaks(114)
def another_fused_kernel(patch):
    whole = kernels.sdpa_attention
    patch.setattr(
        kernels, "sdpa_attention", lambda query, key, value, **settings: whole(2 * query, key, value, **settings)
    )
