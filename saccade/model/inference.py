"""Prepares a model for CPU inference: replaces its linear layers by ones with prepacked or int8 weights."""

import ctypes
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.kernels.cpu.fma import build_float_linear
from saccade.kernels.cpu.prepared import (
    CpuLayout,
    Int8Embedding,
    NoDropout,
    PreparedFeedForward,
    PreparedHeadProjection,
    get_layout,
    quantize_weight,
    reorder_by_part,
)
from saccade.kernels.cpu.vnni import build_int8_linear
from saccade.layers.attention.multihead import HeadProjection
from saccade.model.run import named_weights

MALLOC_SETTINGS = {-3: 32 << 20, -1: 256 << 20}  # glibc's M_MMAP_THRESHOLD (its maximum) and M_TRIM_THRESHOLD, in bytes
SCALE_SUFFIX = ".scale"  # appended to the name of an int8 tensor: its scales
FLOAT_SUFFIX = ".float"  # the same tensor in float32, for a module that is not quantized (tied weights)


class ReplaceableModule(NamedTuple):
    """A submodule that can be replaced by a prepared one."""

    parent: nn.Module
    name: str
    module: Any  # nn.Linear, HeadProjection or nn.Embedding
    layout: CpuLayout  # of the module that declares it
    heads: tuple[int, int, int] | None = None  # shape of a HeadProjection

    @property
    def before_relu(self) -> bool:
        return self.name == "up" and self.layout.is_relu

    @property
    def after_relu(self) -> bool:
        return self.name == "down" and self.layout.is_relu

    def reorder_outputs(self, outputs: Tensor) -> Tensor:
        """Reorder weights or biases, one row for each output, to the output order of the prepared module."""
        return outputs if self.heads is None else reorder_by_part(outputs, self.heads)

    def get_bias(self) -> Tensor | None:
        return None if self.module.bias is None else self.reorder_outputs(self.module.bias.detach().flatten())

    def replace_with(self, product: nn.Module) -> None:
        setattr(self.parent, self.name, product if self.heads is None else PreparedHeadProjection(product, self.heads))


def prepack_weights(model: nn.Module) -> None:
    """Replace linear layers by prepacked float32 ones; those of a stepwise writer are also packed for single rows."""
    _remove_dropout(model)
    writers = {id(part) for writer in model.modules() if get_layout(writer).stepwise for part in writer.modules()}
    for layer in _find_linear_layers(model):
        weight = layer.reorder_outputs(layer.module.weight.detach().flatten(0, -2))
        layer.replace_with(
            build_float_linear(weight, layer.get_bias(), single_row=id(layer.module) in writers, relu=layer.before_relu)
        )
    _fuse_relu_networks(model)


def quantize_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of the model, those of linear layers and embeddings as int8 with one scale per row."""
    tensors = named_weights(model)
    for scale in get_scale_names(model):
        name = scale.removesuffix(SCALE_SUFFIX)
        weight = tensors[name]
        quantized, tensors[scale] = quantize_weight(weight.flatten(0, -2))
        tensors[name] = quantized.view_as(weight)
        if name + FLOAT_SUFFIX in get_float_names(model):
            tensors[name + FLOAT_SUFFIX] = weight
    return tensors


def get_scale_names(model: nn.Module) -> set[str]:
    """Names of the scale tensors of a quantized model; tied weights share one."""
    names = _get_parameter_names(model)
    return {
        names[id(layer.module.weight)] + SCALE_SUFFIX
        for layer in [*_find_linear_layers(model), *_find_embeddings(model)]
    }


def get_float_names(model: nn.Module) -> set[str]:
    """Names of the float32 copies of quantized tensors that a module which is not replaced uses too."""
    names, layers = _get_parameter_names(model), [*_find_linear_layers(model), *_find_embeddings(model)]
    replaced, quantized = {id(layer.module) for layer in layers}, {id(layer.module.weight) for layer in layers}
    return {
        names[id(weight)] + FLOAT_SUFFIX
        for module in model.modules()
        if id(module) not in replaced
        for weight in module.parameters(recurse=False)
        if id(weight) in quantized
    }


@torch.no_grad()
def load_quantized_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace linear layers and embeddings by int8 ones from `quantize_weights`, and copy the other tensors by name."""
    _remove_dropout(model)
    names = _get_parameter_names(model)
    layers, embeddings = _find_linear_layers(model), _find_embeddings(model)
    for name, tensor in named_weights(model).items():
        if name + FLOAT_SUFFIX in tensors:
            tensor.copy_(tensors[name + FLOAT_SUFFIX])
        elif name + SCALE_SUFFIX not in tensors:
            tensor.copy_(tensors[name])
    for layer in layers:
        name = names[id(layer.module.weight)]
        weight, scale = (
            layer.reorder_outputs(part) for part in (tensors[name].flatten(0, -2), tensors[name + SCALE_SUFFIX])
        )
        relu, positive = layer.before_relu, layer.after_relu
        layer.replace_with(
            build_int8_linear(
                weight, scale, layer.get_bias(), exact=layer.layout.exact, relu=relu, nonnegative=positive
            )
        )
    _fuse_relu_networks(model)
    for layer in embeddings:
        name = names[id(layer.module.weight)]
        layer.replace_with(Int8Embedding(tensors[name], tensors[name + SCALE_SUFFIX]))


def _remove_dropout(model: nn.Module) -> None:
    """Replace dropout, which is called hundreds of times in each step and does nothing in inference."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, NoDropout())


def _fuse_relu_networks(model: nn.Module) -> None:
    """Replace feed-forward networks with ReLU by their two linear layers, the first of which applies the ReLU."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if get_layout(child).is_relu:
                setattr(module, name, PreparedFeedForward(child.get_submodule("up"), child.get_submodule("down")))


def _find_linear_layers(model: nn.Module) -> list[ReplaceableModule]:
    """All declared linear layers, except projections that split their input among heads: these are not one matrix."""
    found = []
    for module in model.modules():
        layout = get_layout(module)
        for path in layout.linears:
            parent_path, _, name = path.rpartition(".")
            parent = module.get_submodule(parent_path)
            child = getattr(parent, name)
            heads = child.shape if isinstance(child, HeadProjection) and not child.split else None
            if heads is not None or isinstance(child, nn.Linear):
                found.append(ReplaceableModule(parent, name, child, layout, heads))
    return found


def _find_embeddings(model: nn.Module) -> list[ReplaceableModule]:
    declared = [(module, get_layout(module)) for module in model.modules()]
    return [
        ReplaceableModule(module, name, getattr(module, name), layout)
        for module, layout in declared
        for name in layout.embeddings
    ]


def _get_parameter_names(model: nn.Module) -> dict[int, str]:
    """Return the name of each parameter by its id."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step or batch: new pages would take a tenth of the decoding time."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    for setting, size in MALLOC_SETTINGS.items():
        mallopt(setting, size)
