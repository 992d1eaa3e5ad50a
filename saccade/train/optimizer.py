"""AdamW with decoupled decay, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from saccade.config.schema import Optimizer
from saccade.errors import SaccadeError

FUSED = ("cpu", "cuda")  # one kernel for the whole update


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """The named parts of the model ("reader", "writer") are not trained; what they share stays frozen as well."""
    for part in parts:
        for parameter in model.get_submodule(part).parameters():
            parameter.requires_grad_(False)


def optimizer_from(settings: Optimizer, model: nn.Module) -> torch.optim.AdamW:
    """Adam (Kingma and Ba 2015) with decoupled decay (Loshchilov and Hutter 2019); the schedule sets the rate."""
    decayed, free = split_by_decay(model)
    if not decayed + free:
        raise SaccadeError("nothing is left to train: every parameter is frozen; freeze fewer parts")
    fused = (decayed + free)[0].device.type in FUSED
    groups = [{"params": decayed, "weight_decay": settings.decay}, {"params": free, "weight_decay": 0.0}]
    device = (decayed + free)[0].device
    rate: Any = torch.zeros((), device=device) if device.type == "cuda" else 0.0  # graphs read it from the device
    return torch.optim.AdamW(
        groups, lr=rate, betas=settings.betas, eps=settings.eps, fused=fused, capturable=device.type == "cuda"
    )


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices, and those without decay: biases, norms and embeddings, also where an output is tied to them."""
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            alone = parameter.ndim < 2 or name.endswith("bias") or id(parameter) in embeddings
            (free if alone else decayed).append(parameter)
    return decayed, free


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as `exp_avg:PARAMETER`, `exp_avg_sq:PARAMETER`, `step:PARAMETER`."""
    return {
        f"{key}:{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Puts back what optimizer_tensors gave; counters lie beside fused parameters, and on the CPU otherwise."""
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        key, name = full.split(":", 1)
        parameter = parameters[name]
        beside = key != "step" or parameter.device.type in FUSED
        optimizer.state[parameter][key] = value.to(parameter.device if beside else "cpu", copy=True)
