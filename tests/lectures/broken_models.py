"""Deliberately broken positions and blocks."""

import torch
from broken_registry import breaks, puts
from torch import nn

from saccade.layers.attention import positions as layer_positions
from saccade.layers.attention.multihead import HeadProjection
from saccade.layers.blocks import feedforward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import TransformerStack
from saccade.lectures.attention import blocks, positions
from saccade.model.readers.tokens import Embedding

# ---- positions


@breaks(60)
def positions_left_out(patch):
    patch.setattr(Embedding, "forward", lambda self, ids, at=None: self.tokens(ids) * self.scale)


@breaks(70, 72, 73)
def another_base(patch):
    whole = layer_positions._compute_frequencies
    patch.setattr(
        layer_positions, "_compute_frequencies", lambda *given, **more: whole(*given, **{**more, "base": 2.0})
    )


@breaks(71)
def one_layout(patch):
    whole = positions.encode_positions
    patch.setattr(
        positions, "encode_positions", lambda count, width, layout="", frequencies="paper": whole(count, width)
    )


@breaks(74)
def no_penalty(patch):
    whole = layer_positions.Alibi.forward
    patch.setattr(layer_positions.Alibi, "forward", lambda self, *given: 0 * whole(self, *given))


# ---- blocks


@breaks(12)
def with_recurrence(patch):
    def broken():
        model = blocks.build_stack(6, layers=1)
        model.more = nn.GRU(2, 2)
        return model

    patch.setattr(blocks, "build_small_model", broken)


@breaks(20)
def detached(patch):
    whole = HeadProjection.forward
    patch.setattr(HeadProjection, "forward", lambda self, x: tuple(y.detach() for y in whole(self, x)))


@breaks(76)
def without_relu(patch):
    patch.setitem(feedforward.ACTIVATIONS, "relu", torch.tanh)


@breaks(112)
def always_adds(patch):
    whole = Residual.__init__
    patch.setattr(Residual, "__init__", lambda self, norm, **how: whole(self, norm, **{**how, "adds": True}))


puts(77, owner=blocks, build_norm=lambda settings: nn.LayerNorm(settings.dim, eps=1e-3))
puts(78, owner=blocks, build_norm=lambda settings: nn.LayerNorm(settings.dim, eps=1.0))
puts(80, owner=Residual, end_sublayer=lambda self, hidden, residual: (self.norm(residual) + hidden, None))
puts(82, owner=TransformerStack, forward=lambda self, x, mask: (x, mask, None, {}))


@breaks(83)
def shorter_warmup(patch):
    whole = blocks.inverse_sqrt_lr
    patch.setattr(blocks, "inverse_sqrt_lr", lambda step, lr, dim, steps: whole(step, lr=lr, dim=dim, steps=steps // 2))
