"""Models whose parameters are shared by several processes: FSDP2 and tensor parallelism, both as DTensors.

A sharded model is built on the meta device. Each process then receives its part of the values that one process would
start with: blocks are initialized one after the other, and no process holds more than one of them whole.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.model.build.model import build
from saccade.model.build.transformer import finish_blocks
from saccade.model.model import Model
from saccade.model.run import SkipInit
from saccade.train.distributed.mesh import choose_shard_dim
from saccade.train.distributed.parts import copy_part, gather_whole, get_local
from saccade.train.distributed.ranks import Ranks
from saccade.train.distributed.tensor import apply_tensor_parallel
from saccade.train.transfer.initialization import init_weights
from saccade.train.transfer.lora import add_lora
from saccade.train.transfer.model import build_initial_model, build_on_meta


def shard_model(model: Model, mesh: Any) -> None:
    """Shard the parameters over the dimension `shard` of a mesh, in place; each block is gathered when it is needed.

    Parameters outside of blocks, and those that blocks share, form one group that is gathered for the whole step.
    """
    # Gathering over two dimensions of the mesh takes two operations, which torch would remark on in every process.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    # Blocks return views of their output, which nothing changes in place.
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view", UserWarning)
    # With one replica, a mesh of one dimension saves an all-reduce for each block.
    group = mesh["shard"] if mesh["data"].size() == 1 else mesh["data", "shard"]
    size = mesh["shard"].size()

    def choose_placement(parameter: nn.Parameter) -> Shard:
        """Shard the first dimension that can be split evenly, so that all processes hold equally much."""
        split = {place.dim for place in getattr(parameter, "placements", ()) if isinstance(place, Shard)}
        return Shard(choose_shard_dim(get_local(parameter).shape, size, split))

    stacks: Iterable[Any] = model.modules()
    for stack in stacks:
        units = getattr(stack, "shard_units", ())
        for unit in units:
            fully_shard(unit, mesh=group, shard_placement_fn=choose_placement)
            register_fsdp_forward_method(unit, "run")
        if units:
            stack.runs_hooks = True
    fully_shard(model, mesh=group, shard_placement_fn=choose_placement, reshard_after_forward=False)
    model.runs_hooks = True


def build_sharded_model(
    recipe: Recipe, tokenizers: Tokenizers, *, ranks: Ranks, device: torch.device, fresh: bool
) -> tuple[Model, list[str]]:
    """Build a model over the mesh of the ranks, with the initial values of one process if `fresh`.

    Also returns remarks about transferred weights.
    """
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target_size}
    built: list[nn.Module] = []
    with finish_blocks(built.append):
        model = build_on_meta(recipe, tokenizers)
    names = {id(module): name for name, module in model.named_modules()}
    prefixes = [f"{names[id(block)]}." for block in built]
    if ranks.tensor > 1:
        apply_tensor_parallel(model, ranks.mesh["tensor"])
    shard_model(model, ranks.mesh)
    model.to_empty(device=device)
    notes: list[str] = []
    if fresh and (recipe.init or recipe.train.lora):  # weights of other runs are read whole
        source, notes = build_initial_model(recipe, tokenizers, fresh=True)
        fill(model, source)
    else:
        stream_initial_values(model, recipe, sizes, prefixes=prefixes, fresh=fresh)
    return model.train(), notes


def stream_initial_values(
    model: Model, recipe: Recipe, sizes: Mapping[str, int], *, prefixes: list[str], fresh: bool
) -> None:
    """Build the model once more on the CPU, copy the part of this process of each block, and drop the block.

    Unless `fresh`, values are left to a checkpoint and only buffers such as tables of positions are filled.
    """
    targets = dict(model.named_parameters(remove_duplicate=False))
    left = iter(prefixes)

    def take_block(block: nn.Module) -> None:
        prefix = next(left)
        for name, parameter in block.named_parameters():
            if fresh and not parameter.is_meta:
                copy_part(targets[prefix + name], parameter)
        for module in block.modules():
            for name, value in module.named_parameters(recurse=False):
                module._parameters[name] = nn.Parameter(value.to("meta"), value.requires_grad)

    torch.manual_seed(recipe.train.seed)
    if fresh:
        with finish_blocks(take_block):
            source = build(recipe, **sizes)
        fill(model, source)
        init_weights(source, recipe.train.weight_init, assign=lambda name, value: copy_part(targets[name], value))
    else:
        with SkipInit(), finish_blocks(take_block):
            fill(model, build(recipe, **sizes), parameters=False)


def fill(model: nn.Module, source: nn.Module, *, parameters: bool = True) -> None:
    """Copy all buffers of a whole model into a sharded one, and its parameters except those on the meta device."""
    if parameters:
        targets = dict(model.named_parameters(remove_duplicate=False))
        for name, value in source.named_parameters():
            if not value.is_meta:
                copy_part(targets[name], value)
    buffers = dict(model.named_buffers())
    for name, buffer in source.named_buffers():
        copy_part(buffers[name], buffer)


def build_replica(model: Model, recipe: Recipe, tokenizers: Tokenizers, weights: Mapping[str, Tensor]) -> Model:
    """Build a whole model with these weights, for decoding: a process then need not wait for the others.

    All processes must call this; each holds the whole weights until the replica is dropped.
    """
    with SkipInit():
        replica = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
    add_lora(replica, recipe)
    names = dict(replica.named_parameters()) | dict(replica.named_buffers())
    with torch.no_grad():
        for name, tensor in weights.items():
            names[name].copy_(gather_whole(tensor))
    return replica.to(next(model.parameters()).device)
