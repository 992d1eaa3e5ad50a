"""Deliberately broken recurrent networks."""

import torch
from broken_registry import breaks, puts
from torch import nn

from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.audio import downsampling as layer_pyramid
from saccade.layers.blocks import recurrent as layer_recurrent
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.lectures.systems import parallelism, systems

# ---- recurrent networks


def other_cell(cell, width, dim, bidirectional):
    whole = layer_recurrent.CELLS[cell].module
    layer = whole(width, dim, batch_first=True)
    return nn.RNN(width, dim, nonlinearity="relu", batch_first=True) if cell == "rnn" else layer


puts(1, owner=layer_recurrent, build_recurrent_layer=other_cell)
puts(2, 3, owner=InitialState, summarize=lambda self, memory: memory.states.mean(1))
puts(6, owner=layer_recurrent, reverse_sequences=lambda x, lengths: x)


@breaks(11)
def wider_kernel(patch):
    whole = systems.load
    patch.setattr(systems, "load", lambda name, overrides: whole(name, overrides=[*overrides, "reader.stack.kernel=5"]))


@breaks(17)
def attends_without_a_query(patch):
    whole = SoftAttention.forward
    patch.setattr(SoftAttention, "forward", lambda self, query, source: whole(self, 0 * query, source))


puts(7, owner=nn.RNNCell, forward=lambda self, x, h=None: x[:, :1].expand(-1, 3))


class Summing(nn.Module):
    """A network whose gradient does not vanish."""

    def forward(self, x):
        return x.cumsum(1), None


puts(8, owner=nn, RNN=lambda *sizes, **settings: Summing())


@breaks(9)
def padding_is_read(patch):
    whole = RecurrentStack.forward
    patch.setattr(RecurrentStack, "forward", lambda self, x, mask: whole(self, x, None))


@breaks(10)
def nothing_waits(patch):
    linear = nn.Linear(parallelism.WIDTH, parallelism.WIDTH)
    patch.setattr(
        parallelism, "build_layers", lambda: dict.fromkeys(("recurrent", "convolution", "self-attention"), linear)
    )
    patch.setattr(parallelism, "measure_seconds", lambda layer, n: 1.0)


puts(13, owner=parallelism, SelfAttention=lambda dim, heads: nn.Identity())


@breaks(30)
def pairs_that_are_turned(patch):
    """A pyramid whose upper layers swap each pair of states."""
    plain = layer_pyramid.concat_pairs

    def paired(x, mask):
        pairs, short = plain(x, mask)
        return torch.cat(pairs.chunk(2, -1)[::-1], -1), short

    patch.setattr(layer_pyramid, "concat_pairs", paired)


@breaks(32)
def sees_the_first_picture_always(patch):
    """A writer that never switches to the next picture."""
    patch.setattr(RecurrentWriter, "switch_memory", lambda self, state, memory: state)
