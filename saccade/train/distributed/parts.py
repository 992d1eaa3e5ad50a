"""Tensors that may be DTensors, of which each process holds a part. Does not import DTensor, which takes a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from saccade.model.run import named_weights


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def get_local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process holds; it shares its memory."""
    local: Tensor = tensor.to_local() if is_distributed(tensor) else tensor
    return local


def wrap_local(local: Tensor, *, like: Tensor) -> Tensor:
    """Return the part of this process as a tensor that is distributed as another one; it shares its memory."""
    if not is_distributed(like):
        return local
    from torch.distributed.tensor import DTensor

    target: Any = like
    return DTensor.from_local(
        local, target.device_mesh, target.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def gather_whole(tensor: Any) -> Tensor:
    """Return the whole tensor on the CPU; all processes must call this."""
    whole: Tensor = tensor.full_tensor() if is_distributed(tensor) else tensor
    return whole.detach().cpu()


@torch.no_grad()
def copy_part(target: Any, whole: Tensor) -> None:
    """Copy into a tensor the values of a whole one of the same shape: of a DTensor, the part of this process."""
    if not is_distributed(target) or is_distributed(whole):
        target.copy_(whole)
        return
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    slices = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    target.to_local().copy_(whole[slices])


def copy_weight_parts(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy whole or distributed weights into a model that may be sharded, in place, by name."""
    for name, tensor in named_weights(model).items():
        copy_part(tensor, weights[name])


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters of a sharded model after forward passes without a backward pass."""
    if getattr(model, "runs_hooks", False):
        modules: Iterable[Any] = model.modules()
        for module in modules:
            if hasattr(module, "reshard"):
                module.reshard()
