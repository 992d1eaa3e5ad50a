"""AdamW with decoupled decay, LAMB, or an optimizer of the user's own, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from saccade.config.kinds import Custom
from saccade.config.schema import Optimizer
from saccade.errors import SaccadeError
from saccade.train.checkpoint import Checkpoint
from saccade.train.lamb import Lamb

NUMBER_SUFFIX = "#number"  # marks a number of the state among its tensors
NUMBER_TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}
FUSED_DEVICES = ("cpu", "cuda")  # where torch has a fused AdamW


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Freeze the named submodules ("reader", "writer"); parameters that they share with others are frozen too."""
    for part in parts:
        for parameter in model.get_submodule(part).parameters():
            parameter.requires_grad_(False)


def build_optimizer(settings: Optimizer | Custom, model: nn.Module) -> torch.optim.Optimizer:
    """Build AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019) or LAMB; the schedule sets the learning rate."""
    decayed, free = split_by_decay(model)
    if not decayed + free:
        raise SaccadeError("nothing is left to train: every parameter is frozen; freeze fewer parts")
    if isinstance(settings, Custom):
        return build_own_optimizer(settings, decayed, free)
    fused = (decayed + free)[0].device.type in FUSED_DEVICES
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": free, "weight_decay": 0.0}]
    device = (decayed + free)[0].device
    rate: Any = torch.zeros((), device=device) if device.type == "cuda" else 0.0  # CUDA graphs read it from the device
    if settings.kind == "lamb":
        return Lamb(groups, lr=rate, betas=settings.betas, eps=settings.eps)
    return torch.optim.AdamW(
        groups, lr=rate, betas=settings.betas, eps=settings.eps, fused=fused, capturable=device.type == "cuda"
    )


def build_own_optimizer(
    settings: Custom, decayed: list[nn.Parameter], free: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Call the user's optimizer with two parameter groups; its setting `weight_decay` is 0 in the second one."""
    decay = settings.settings().get("weight_decay")
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free}]
    if decay is not None:
        groups = [{"params": decayed, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]
    built = settings.make([group for group in groups if group["params"]])
    if not isinstance(built, torch.optim.Optimizer):
        raise SaccadeError(
            f"the optimizer '{settings.kind}' must return a torch.optim.Optimizer, got {type(built).__name__}"
        )
    device = (decayed + free)[0].device
    if settings.is_capturable and device.type == "cuda":
        for group in built.param_groups:
            group["lr"] = torch.zeros((), device=device)  # CUDA graphs read it from the device
    return built


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
    """Return the optimizer's state as named tensors: `exp_avg:NAME`, `exp_avg_sq:NAME`, `step:NAME`.

    Numbers that an optimizer of the user's own keeps become tensors `KEY#number:NAME`.
    """
    return {
        full_name: tensor
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
        for full_name, tensor in [to_named_tensor(key, name, value)]
    }


def to_named_tensor(key: str, name: str, value: Any) -> tuple[str, Tensor]:
    if isinstance(value, Tensor):
        return f"{key}:{name}", value
    if type(value) in NUMBER_TYPES:
        return f"{key}{NUMBER_SUFFIX}:{name}", torch.tensor(value, dtype=NUMBER_TYPES[type(value)])
    raise SaccadeError(
        f"the state '{key}' of the optimizer is a {type(value).__name__}, which cannot be saved; keep tensors, numbers"
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, found: Checkpoint) -> None:
    """Restore the tensors of `get_optimizer_tensors`; step counters are on the device of fused parameters, else CPU.

    State of the shape of its parameter is distributed as the parameter is.
    """
    parameters = dict(model.named_parameters())
    on_device = {
        id(parameter): bool(group.get("fused") or group.get("capturable"))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    tensors: dict[str, Tensor] = {}
    for full_name, (shape, dtype) in found.load_shapes("optimizer").items():
        key, name = full_name.split(":", 1)
        parameter = parameters[name]
        on_cpu = key.endswith(NUMBER_SUFFIX) or (key == "step" and not on_device[id(parameter)])
        if shape == parameter.shape and shape:
            tensors[full_name] = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            tensors[full_name] = torch.empty(shape, dtype=dtype, device="cpu" if on_cpu else parameter.device)
    if tensors:
        found.load_into("optimizer", tensors)
    for full_name, value in tensors.items():
        key, name = full_name.split(":", 1)
        state = optimizer.state[parameters[name]]
        if key.endswith(NUMBER_SUFFIX):
            state[key.removesuffix(NUMBER_SUFFIX)] = value.item()
        else:
            state[key] = value
