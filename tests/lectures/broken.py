"""For every check of the lectures, an implementation that is wrong in one place: row -> what breaks it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from saccade.layers import attention as layer_attention
from saccade.layers import columns as layer_columns
from saccade.layers import feedforward, kernels, transformer
from saccade.layers import masks as layer_masks
from saccade.layers import positions as layer_positions
from saccade.layers import recurrent as layer_recurrent
from saccade.layers.attention import Additive, AttentionLayer, attend, dot, scaled_dot
from saccade.layers.columns import ColumnLayer, head_forward
from saccade.layers.multihead import CrossAttention, HeadProjection, SelfAttention
from saccade.layers.recurrence import Look
from saccade.layers.recurrent import RecurrentStack
from saccade.layers.recurrent_writer import FirstState
from saccade.layers.transformer import TransformerStack
from saccade.lectures import (
    alignment,
    attention,
    blocks,
    bottleneck,
    columns,
    complexity,
    decoding,
    depth,
    growth,
    heads,
    masks,
    positions,
    scores,
    systems,
    tables,
    trace,
    training,
    waiting,
)
from saccade.model.readers import Embedding

BREAKS: dict[int, Callable[[Any], None]] = {}


def breaks(*rows: int) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def note(function: Callable[[Any], None]) -> Callable[[Any], None]:
        BREAKS.update(dict.fromkeys(rows, function))
        return function

    return note


def puts(*rows: int, owner: Any, **changes: Any) -> None:
    """Some names of a module or class stand for something else."""

    @breaks(*rows)
    def put(patch: Any) -> None:
        for name, value in changes.items():
            patch.setattr(owner, name, value)


def unscaled(query, key, value, score=None, mask=None):
    return attend(query, key, value, score=dot, mask=mask)


def always_scaled(query, key, value, score=None):
    return attend(query, key, value)


def doubled(query, key, value, score=None):
    y, weights = attend(query, key, value, score=score)
    return 2 * y, weights


# ---- recurrent networks


def other_cell(cell, width, dim, bidirectional):
    whole = layer_recurrent.CELLS[cell].fused
    layer = whole(width, dim, batch_first=True)
    return nn.RNN(width, dim, nonlinearity="relu", batch_first=True) if cell == "rnn" else layer


puts(1, owner=layer_recurrent, recurrent_layer=other_cell)
puts(2, 3, owner=FirstState, summary=lambda self, memory: memory.states.mean(1))
puts(6, owner=layer_recurrent, turned=lambda x, lengths: x)


@breaks(11)
def wider_kernel(patch):
    whole = systems.load
    patch.setattr(systems, "load", lambda name, overrides: whole(name, overrides=[*overrides, "reader.stack.kernel=5"]))


@breaks(17)
def looks_without_a_query(patch):
    whole = Look.forward
    patch.setattr(Look, "forward", lambda self, query, source: whole(self, 0 * query, source))


puts(7, owner=nn.RNNCell, forward=lambda self, x, h=None: x[:, :1].expand(-1, 3))


class Summing(nn.Module):
    """A network whose gradient does not fade."""

    def forward(self, x):
        return x.cumsum(1), None


puts(8, owner=nn, RNN=lambda *sizes, **settings: Summing())


@breaks(9)
def padding_is_read(patch):
    whole = RecurrentStack.forward
    patch.setattr(RecurrentStack, "forward", lambda self, x, mask: whole(self, x, None))


@breaks(10)
def nothing_waits(patch):
    linear = nn.Linear(waiting.WIDTH, waiting.WIDTH)
    patch.setattr(waiting, "layers", lambda: dict.fromkeys(("recurrent", "convolution", "self-attention"), linear))
    patch.setattr(waiting, "seconds", lambda layer, n: 1.0)


puts(13, owner=waiting, SelfAttention=lambda dim, heads: nn.Identity())


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
    patch.setattr(SelfAttention, "forward", lambda self, x, mask=None, packing=None: whole(self, x, mask=causal))


@breaks(86)
def always_near(patch):
    whole = SelfAttention.forward
    near = layer_masks.window(3)
    patch.setattr(SelfAttention, "forward", lambda self, x, mask=None, packing=None: whole(self, x, mask=near))


@breaks(79)
def mixing_network(patch):
    whole = feedforward.FeedForward.forward
    patch.setattr(feedforward.FeedForward, "forward", lambda self, x: whole(self, x) + x.mean(1, keepdim=True))


@breaks(113)
def other_values(patch):
    whole = CrossAttention.keys_values

    def broken(self, states):
        kept = whole(self, states)
        return type(kept)(kept.keys, 2 * kept.values)

    patch.setattr(CrossAttention, "keys_values", broken)


puts(57, owner=layer_attention, scaled_dot=dot)
puts(61, 68, owner=TransformerStack, structure=lambda self, keep, window: None)
puts(62, owner=masks, masked_softmax=masks.renormalised)


@breaks(69)
def weights_not_normalised(patch):
    whole = kernels.explicit

    def broken(query, key, value, **settings):
        y, weights = whole(query, key, value, **settings)
        return y, 2 * weights

    patch.setattr(kernels, "explicit", broken)


# ---- heads

puts(63, owner=heads, attend=unscaled)
puts(64, owner=heads, SelfAttention=partial(SelfAttention, scale=False))
puts(65, owner=heads, SelfAttention=partial(SelfAttention, form="full"))


@breaks(114)
def another_fused_kernel(patch):
    whole = kernels.fused
    patch.setattr(kernels, "fused", lambda query, key, value, **settings: whole(2 * query, key, value, **settings))


# ---- positions


@breaks(60)
def positions_left_out(patch):
    patch.setattr(Embedding, "forward", lambda self, ids, at=None: self.tokens(ids) * self.scale)


@breaks(70, 72, 73)
def another_base(patch):
    whole = layer_positions._angles
    patch.setattr(layer_positions, "_angles", lambda at, count, **given: whole(at, count, **{**given, "base": 2.0}))


@breaks(71)
def one_layout(patch):
    whole = positions.encoded
    patch.setattr(positions, "encoded", lambda count, width, layout="", frequencies="paper": whole(count, width))


@breaks(74)
def no_penalty(patch):
    whole = layer_positions.Alibi.forward
    patch.setattr(layer_positions.Alibi, "forward", lambda self, *given: 0 * whole(self, *given))


# ---- blocks


@breaks(12)
def with_recurrence(patch):
    def broken():
        model = blocks.stack(6, layers=1)
        model.more = nn.GRU(2, 2)
        return model

    patch.setattr(blocks, "small_model", broken)


@breaks(20)
def detached(patch):
    whole = HeadProjection.forward
    patch.setattr(HeadProjection, "forward", lambda self, x: tuple(y.detach() for y in whole(self, x)))


@breaks(76)
def without_relu(patch):
    patch.setitem(feedforward.ACTIVATIONS, "relu", torch.tanh)


puts(77, owner=blocks, build_norm=lambda settings: nn.LayerNorm(settings.dim, eps=1e-3))
puts(78, owner=blocks, build_norm=lambda settings: nn.LayerNorm(settings.dim, eps=1.0))
puts(80, owner=transformer, normalised=lambda x, norm, plus, dropout: norm(x) + plus)
puts(82, owner=TransformerStack, _whole=lambda self, x, mask, memory: x)


@breaks(83)
def shorter_warmup(patch):
    whole = blocks.warmup
    patch.setattr(blocks, "warmup", lambda step, lr, dim, steps: whole(step, lr=lr, dim=dim, steps=steps // 2))


# ---- cost and size


@breaks(84)
def wider_window(patch):
    patch.setattr(complexity.masks, "window", lambda reach: layer_masks.Window(reach + 1))
    patch.setattr(complexity, "timed", lambda run, n: float(n**2))


@breaks(85)
def weights_are_held(patch):
    def broken(query, key, value, scale, mask, q_pos, k_pos):
        return kernels.explicit(query, key, value, scale=scale, allowed=None)[0]

    patch.setattr(kernels, "fused", broken)
    patch.setattr(complexity, "timed", lambda run, n: float(n**2))


class Alone(nn.Module):
    """A layer in which no position sees another."""

    def __init__(self, dim, heads):
        super().__init__()

    def forward(self, x):
        return 2 * x


puts(67, owner=complexity, SelfAttention=Alone)


@breaks(87)
def other_gpus(patch):
    systems, an_hour = tables.translations()
    patch.setattr(tables, "translations", lambda: (systems, 2 * an_hour))


@breaks(88, 89)
def one_table_more(patch):
    whole = growth.load
    patch.setattr(growth, "load", lambda name: whole(name, overrides=["writer.tie=output"]))


@breaks(93, 94, 95, 96, 97)
def one_layer_alone(patch):
    whole = growth.load
    patch.setattr(growth, "load", lambda name: whole(name, overrides=["writer.stack.layers=1"]))


@breaks(90, 91, 92)
def one_layer_more(patch):
    more = [size._replace(layers=size.layers + 1) for size in tables.sizes()]
    patch.setattr(tables, "sizes", lambda: more)


@breaks(98)
def other_price(patch):
    given = tables.cost()
    patch.setattr(tables, "cost", lambda: {**given, "price": 1.01})


@breaks(107, 108)
def twice(patch):
    whole = decoding.decode

    def broken(model, batch, **settings):
        whole(model, batch, **settings)
        return whole(model, batch, **settings)

    patch.setattr(decoding, "decode", broken)


# ---- what is trained: nothing is learned in one step

puts(4, owner=training, PAIR_STEPS=1)
puts(5, 19, owner=bottleneck, STEPS=1)
puts(21, owner=alignment, STEPS=1)
puts(81, owner=depth, STEPS=1)
puts(99, owner=training, PRETRAINING_STEPS=1, TUNING_STEPS=1, PRETRAINING=200)
