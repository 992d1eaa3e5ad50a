"""AdamW with decoupled decay, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from saccade.config.schema import Optimizer
from saccade.errors import SaccadeError

FUSED_DEVICES = ("cpu", "cuda")  # where torch has a fused AdamW


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Freeze the named submodules ("reader", "writer"); parameters that they share with others are frozen too."""
    for part in parts:
        for parameter in model.get_submodule(part).parameters():
            parameter.requires_grad_(False)


def build_optimizer(settings: Optimizer, model: nn.Module) -> torch.optim.AdamW:
    """Build AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019); the schedule sets the learning rate."""
    decayed, free = split_by_decay(model)
    if not decayed + free:
        raise SaccadeError("nothing is left to train: every parameter is frozen; freeze fewer parts")
    fused = (decayed + free)[0].device.type in FUSED_DEVICES
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": free, "weight_decay": 0.0}]
    device = (decayed + free)[0].device
    rate: Any = torch.zeros((), device=device) if device.type == "cuda" else 0.0  # CUDA graphs read it from the device
    return torch.optim.AdamW(
        groups, lr=rate, betas=settings.betas, eps=settings.eps, fused=fused, capturable=device.type == "cuda"
    )


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split parameters into those with weight decay (matrices) and without (biases, norms, embeddings even if tied)."""
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_free = parameter.ndim < 2 or name.endswith("bias") or id(parameter) in embeddings
            (free if is_free else decayed).append(parameter)
    return decayed, free


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def get_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as named tensors: `exp_avg:NAME`, `exp_avg_sq:NAME`, `step:NAME`."""
    return {
        f"{key}:{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Restore the tensors of `get_optimizer_tensors`; step counters are on the device of fused parameters, else CPU."""
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        key, name = full_name.split(":", 1)
        parameter = parameters[name]
        on_device = key != "step" or parameter.device.type in FUSED_DEVICES
        optimizer.state[parameter][key] = value.to(parameter.device if on_device else "cpu", copy=True)
