"""A model made ready for inference on a CPU: the same blocks, with products whose weights are laid out for it."""

import ctypes
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.kernels.cpu.fma import float_linear
from saccade.kernels.cpu.prepared import (
    CpuLayout,
    Int8Table,
    NoDropout,
    PreparedFeedForward,
    PreparedHeads,
    by_part,
    get_layout,
    quantise,
)
from saccade.kernels.cpu.vnni import int8_linear
from saccade.layers.attention.multihead import HeadProjection
from saccade.model.run import named_weights

KEPT = {-3: 32 << 20, -1: 256 << 20}  # glibc's M_MMAP_THRESHOLD, at most so much, and M_TRIM_THRESHOLD, in bytes
SCALE = ".scale"  # after the name of a tensor of integers
FLOAT = ".float"  # after its name, where a module that stays as it is has the same tensor (tied weights)


class Place(NamedTuple):
    """A part of a module that a prepared one can take the place of."""

    owner: nn.Module
    name: str
    part: Any  # nn.Linear, HeadProjection or nn.Embedding
    layout: CpuLayout  # that declares it
    heads: tuple[int, int, int] | None = None  # the shape of a HeadProjection

    @property
    def before_relu(self) -> bool:
        return self.name == "up" and self.layout.is_relu

    @property
    def after_relu(self) -> bool:
        return self.name == "down" and self.layout.is_relu

    def ordered(self, outputs: Tensor) -> Tensor:
        """What there is for each output, in the order in which the product that is put here gives them."""
        return outputs if self.heads is None else by_part(outputs, self.heads)

    def bias(self) -> Tensor | None:
        return None if self.part.bias is None else self.ordered(self.part.bias.detach().flatten())

    def put(self, product: nn.Module) -> None:
        setattr(self.owner, self.name, product if self.heads is None else PreparedHeads(product, self.heads))


def pack(model: nn.Module) -> None:
    """Lays out the weights of all products, as they are; those of a writer also for single rows, step by step."""
    _without_dropout(model)
    writers = {id(part) for writer in model.modules() if get_layout(writer).stepwise for part in writer.modules()}
    for place in _products(model):
        weight = place.ordered(place.part.weight.detach().flatten(0, -2))
        place.put(float_linear(weight, place.bias(), single=id(place.part) in writers, relu=place.before_relu))
    _without_relu(model)


def quantised(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model; those of products and token tables as integers, with a scale for each row."""
    tensors = named_weights(model)
    for scale in scale_names(model):
        name = scale.removesuffix(SCALE)
        weight = tensors[name]
        whole, tensors[scale] = quantise(weight.flatten(0, -2))
        tensors[name] = whole.view_as(weight)
        if name + FLOAT in float_names(model):
            tensors[name + FLOAT] = weight
    return tensors


def scale_names(model: nn.Module) -> set[str]:
    """The names of the scales that the int8 weights of a model have; tied weights have one."""
    names = _names(model)
    return {names[id(place.part.weight)] + SCALE for place in [*_products(model), *_tables(model)]}


def float_names(model: nn.Module) -> set[str]:
    """The names of quantised tensors that a module which is not replaced uses too; they are kept in float32 as well."""
    names, places = _names(model), [*_products(model), *_tables(model)]
    replaced, whole = {id(place.part) for place in places}, {id(place.part.weight) for place in places}
    return {
        names[id(weight)] + FLOAT
        for module in model.modules()
        if id(module) not in replaced
        for weight in module.parameters(recurse=False)
        if id(weight) in whole
    }


@torch.no_grad()
def put_quantised(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Makes products and token tables of what `quantised` gave, and copies the rest by name."""
    _without_dropout(model)
    names = _names(model)
    places, tables = _products(model), _tables(model)
    for name, tensor in named_weights(model).items():
        if name + FLOAT in tensors:
            tensor.copy_(tensors[name + FLOAT])
        elif name + SCALE not in tensors:
            tensor.copy_(tensors[name])
    for place in places:
        name = names[id(place.part.weight)]
        weight, scale = (place.ordered(part) for part in (tensors[name].flatten(0, -2), tensors[name + SCALE]))
        relu, positive = place.before_relu, place.after_relu
        place.put(int8_linear(weight, scale, place.bias(), exact=place.layout.exact, relu=relu, positive=positive))
    _without_relu(model)
    for place in tables:
        name = names[id(place.part.weight)]
        place.put(Int8Table(tensors[name], tensors[name + SCALE]))


def _without_dropout(model: nn.Module) -> None:
    """Takes out what does nothing in inference, hundreds of times in each step."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, NoDropout())


def _without_relu(model: nn.Module) -> None:
    """Leaves nothing but the products of such networks."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if get_layout(child).is_relu:
                setattr(module, name, PreparedFeedForward(child.get_submodule("up"), child.get_submodule("down")))


def _products(model: nn.Module) -> list[Place]:
    """All products that are declared but those of heads that split their input, which are no single one."""
    found = []
    for module in model.modules():
        layout = get_layout(module)
        for path in layout.products:
            owner, _, name = path.rpartition(".")
            holder = module.get_submodule(owner)
            part = getattr(holder, name)
            heads = part.shape if isinstance(part, HeadProjection) and not part.split else None
            if heads is not None or isinstance(part, nn.Linear):
                found.append(Place(holder, name, part, layout, heads))
    return found


def _tables(model: nn.Module) -> list[Place]:
    declared = [(module, get_layout(module)) for module in model.modules()]
    return [Place(one, name, getattr(one, name), layout) for one, layout in declared for name in layout.tables]


def _names(model: nn.Module) -> dict[int, str]:
    """The name under which each parameter is stored."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def keep_memory() -> None:
    """Lets the C library keep what is freed, where it is glibc: it would give back what a step or a batch needs again,
    and new pages for logits, keys and values take a tenth of the time."""
    if sys.platform != "linux":
        return
    try:
        change = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    for setting, size in KEPT.items():
        change(setting, size)
