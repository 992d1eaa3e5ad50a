"""Deliberately broken costs, sizes and trainings."""

import torch
from broken_registry import breaks, puts
from torch import nn

from saccade.layers.attention import backends as kernels
from saccade.layers.attention import masks as layer_masks
from saccade.lectures import tables
from saccade.lectures.attention import alignment, depth
from saccade.lectures.scale import complexity, families, growth, probing, prompting, training
from saccade.lectures.systems import bottleneck, decoding
from saccade.predict.predictors.parts import LoadedModel
from saccade.predict.prompts import Template

# ---- cost and size


@breaks(84)
def wider_window(patch):
    patch.setattr(complexity.masks, "window", lambda reach: layer_masks.Window(reach + 1))
    patch.setattr(complexity, "measure_seconds", lambda run, n: float(n**2))


@breaks(85)
def weights_are_held(patch):
    def broken(query, key, value, scale, mask, q_pos, k_pos):
        return kernels.explicit_attention(query, key, value, scale=scale, allowed=None)[0]

    patch.setattr(kernels, "sdpa_attention", broken)
    patch.setattr(complexity, "measure_seconds", lambda run, n: float(n**2))


class Alone(nn.Module):
    """A layer in which no position attends to another."""

    def __init__(self, dim, heads):
        super().__init__()

    def forward(self, x):
        return 2 * x


puts(67, owner=complexity, SelfAttention=Alone)


@breaks(87)
def other_gpus(patch):
    systems, an_hour = tables.load_translations()
    patch.setattr(tables, "load_translations", lambda: (systems, 2 * an_hour))


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
    more = [size._replace(layers=size.layers + 1) for size in tables.load_sizes()]
    patch.setattr(tables, "load_sizes", lambda: more)


@breaks(98)
def other_price(patch):
    given = tables.load_cost()
    patch.setattr(tables, "load_cost", lambda: {**given, "price": 1.01})


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
puts(56, owner=probing, PRETRAINING_STEPS=1, STEPS=20)
puts(99, owner=training, PRETRAINING_STEPS=1, TUNING_STEPS=1, PRETRAINING=200)


@breaks(100)
def one_seed_for_all(patch):
    patch.setattr(LoadedModel, "make_generator", lambda self, decoding: torch.Generator().manual_seed(1))


puts(101, owner=prompting, STEPS=1, DOCUMENTS=60)
puts(102, owner=Template, format_example=lambda self, task: "")


@breaks(103)
def layers_of_their_own(patch):
    """An ALBERT whose layers do not share their weights."""
    plain = families.load

    def load(name, overrides):
        return plain(name, overrides=["reader.stack.share_layers=false"] if name == "albert" else overrides)

    patch.setattr(families, "load", load)
