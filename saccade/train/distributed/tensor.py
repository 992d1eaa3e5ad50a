"""Tensor parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): several processes share the work of each layer.

Attention heads, features of feed-forward networks and tokens of the vocabulary are split over the processes, by the
`TensorPlan` that each module declares and the parallel styles of `torch.distributed.tensor`. Parameters become DTensors
and keep their names and logical shapes. Random numbers are those of one process: each process draws the whole dropout
mask and uses its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils import parametrize

from saccade.config.protocols import Capabilities, TensorPlan, get_tensor_plan
from saccade.errors import SaccadeError
from saccade.layers.attention import backends
from saccade.layers.attention.masks import Band, Mask
from saccade.layers.attention.scores import Score, masked_softmax
from saccade.model.model import Model
from saccade.train.distributed.vocabulary import compute_split_losses, share

SEQUENCE_AXIS, HEAD_AXIS = 1, 1  # of hidden states (B, T, D) and of attention weights (B, H, Q, K)
ONE_PROCESS = "set train.parallel.tensor=1"
OTHER_LAYOUTS = f"it has the layouts data and shard: {ONE_PROCESS}"


class Layout(NamedTuple):
    """How a parameter is distributed, and what each process computes of its gradient."""

    placement: Placement
    gradient: Placement


REPLICATED = Layout(Replicate(), Replicate())


def apply_tensor_parallel(model: Model, mesh: DeviceMesh, *, sequence_parallel: bool = True) -> None:
    """Split a model in place over the processes of a one-dimensional mesh, whose processes have equal weights.

    With `sequence_parallel`, norms and residual connections are split by position: two all-gathers and two
    reduce-scatters per block instead of two all-reduces, and less memory. All parameters are DTensors afterwards.
    Nothing is communicated and no value is read, so that the model may be on the meta device.
    """
    check_tensor_parallel(model, mesh.size())
    tied = list_tied_parameters(model)
    stream: Placement = Shard(SEQUENCE_AXIS) if sequence_parallel else Replicate()
    for path, style in list_styles(model, stream).items():
        parallelize_module(model.get_submodule(path), mesh, style, src_data_rank=None)
    modules = list(model.modules())
    for module in modules:
        apply_plan(module, get_tensor_plan(module), mesh, stream)
    for module in modules:
        rest = [name for name, each in module.named_parameters(recurse=False) if not isinstance(each, DTensor)]
        compute_locally(module, mesh, dict.fromkeys(rest, REPLICATED))
    restore_tied_parameters(tied)


def check_tensor_parallel(model: Model, size: int) -> None:
    """Raise a SaccadeError where a model cannot be split over `size` processes."""
    found = model.capabilities
    has_stack = any(get_tensor_plan(module).is_stack for module in model.modules())
    if not found.tensor_parallel or not has_stack:
        reason = found.explain_missing("tensor_parallel") or "no stack of it declares a plan"
        raise SaccadeError(f"tensor parallelism cannot split this model: {reason}; {OTHER_LAYOUTS}")
    if any(parametrize.is_parametrized(module) for module in model.modules()):
        raise SaccadeError(f"tensor parallelism cannot split weights with LoRA; {OTHER_LAYOUTS}")
    sizes: dict[str, int] = {}
    for module in model.modules():
        plan = get_tensor_plan(module)
        for key, value in plan.sizes.items():
            sizes[key] = math.gcd(sizes.get(key, 0), value)
        for path in (*plan.embeddings, *plan.outputs):
            check_vocabulary(module.get_submodule(path).get_parameter("weight").shape[0], size)
    for key, value in sizes.items():
        if value % size:
            allowed = math.gcd(*sizes.values())
            valid = ", ".join(str(number) for number in range(1, allowed + 1) if allowed % number == 0)
            raise SaccadeError(
                f"train.parallel.tensor must divide {key} = {value}, got {size}; set it to one of {valid}"
            )


def check_vocabulary(tokens: int, size: int) -> None:
    """Refuse a vocabulary of which a process would get no token: parts have ceil(tokens / size) tokens."""
    if -(-tokens // size) * (size - 1) >= tokens:
        raise SaccadeError(f"a vocabulary of {tokens} tokens is too small for {size} processes; {ONE_PROCESS}")


@torch.no_grad()
def reduce_partial_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum gradients that each process has computed from its part of the sequence; call it before they are clipped.

    Afterwards each gradient has the placements of its parameter. Norms have such gradients with sequence parallelism;
    reducing them once per step rather than in each backward pass saves communication.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != cast(DTensor, parameter).placements:
            parameter.grad = gradient.redistribute(placements=cast(DTensor, parameter).placements)


# ---- plans of modules


def list_styles(model: Model, stream: Placement) -> dict[str, ParallelStyle]:
    """The parallel styles of torch by the path of a module; a module that occurs several times gets it once."""
    makers: dict[str, Callable[[], ParallelStyle]] = {
        "sublayers": lambda: PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),)),
        "columns": lambda: ColwiseParallel(use_local_output=False),
        "rows": lambda: RowwiseParallel(output_layouts=stream, use_local_output=False),
        "embeddings": lambda: RowwiseParallel(input_layouts=Replicate()),
        "outputs": lambda: ColwiseParallel(output_layouts=Replicate()),
    }
    if stream.is_shard():
        makers["norms"] = SequenceParallel
    styles: dict[str, ParallelStyle] = {}
    seen: set[tuple[str, int]] = set()
    for owner, module in model.named_modules():
        for field, make in makers.items():
            for path in getattr(get_tensor_plan(module), field):
                key = (field, id(module.get_submodule(path)))
                if key not in seen:
                    styles[f"{owner}.{path}"] = make()
                seen.add(key)
    return styles


def apply_plan(module: nn.Module, plan: TensorPlan, mesh: DeviceMesh, stream: Placement) -> None:
    """Apply those parts of a plan for which torch has no parallel style."""
    for name in plan.fused:
        setattr(module, name, False)
    for sublayer in map(module.get_submodule, plan.sublayers):
        sublayer.register_forward_pre_hook(make_input_contiguous)
    for output in map(module.get_submodule, plan.rows):
        output.register_forward_hook(make_gradient_contiguous, prepend=True)
    for norm in map(module.get_submodule, plan.norms):
        norm.fused_add = False  # type: ignore[assignment]
        for name, _ in norm.named_parameters():
            distribute(norm, name, mesh, Replicate())
    for project in map(module.get_submodule, plan.heads):
        names = [name for name, _ in project.named_parameters()]
        compute_locally(project, mesh, dict.fromkeys(names, Layout(Shard(0), Shard(0))))
        project.register_forward_pre_hook(partial(share_input, mesh))
    for output in map(module.get_submodule, plan.outputs):
        output.capabilities = Capabilities(vocabulary_parallel=True)  # type: ignore[assignment]
        output.compute_losses = partial(compute_split_losses, output)  # type: ignore[assignment]
    for dropout in map(module.get_submodule, plan.dropouts):
        dropout.forward = partial(run_dropout, dropout, dropout.forward)
    if plan.is_stack:
        module.register_forward_pre_hook(partial(enter_stack, mesh, stream))
        module.register_forward_hook(leave_stack)
    if plan.attends:
        module.kernels = SplitKernels(mesh)  # type: ignore[assignment]
    layouts = {
        name: Layout(Replicate(), Partial()) if axis is None else Layout(Shard(axis), Shard(axis))
        for name, axis in plan.head_axes.items()
    }
    compute_locally(module, mesh, layouts)


# ---- hidden states


def enter_stack(mesh: DeviceMesh, stream: Placement, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Distribute the hidden states, the first argument, which all processes have."""
    hidden = DTensor.from_local(args[0], mesh, [Replicate()], run_check=False)
    return (hidden.redistribute(placements=[stream]), *args[1:])


def leave_stack(module: nn.Module, args: tuple[Any, ...], output: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gather the hidden states, the first output, as a plain tensor."""
    return (output[0].redistribute(placements=[Replicate()]).to_local(), *output[1:])


def make_input_contiguous(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (make_contiguous(args[0]), *args[1:])


def make_gradient_contiguous(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
    if output.requires_grad:
        output.register_hook(make_contiguous)


def make_contiguous(hidden: Tensor) -> Tensor:
    """Copy gathered hidden states if each process has a view of padded ones, which torch 2.11 cannot multiply."""
    if isinstance(hidden, DTensor) and not cast(DTensor, hidden.detach()).to_local().is_contiguous():
        return hidden.clone(memory_format=torch.contiguous_format)
    return hidden


def share_input(mesh: DeviceMesh, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Pass an input that all processes have as a plain tensor; its gradient is the sum of theirs."""
    x = args[0]
    local = x.to_local(grad_placements=[Partial()]) if isinstance(x, DTensor) else share(x, mesh)
    return (local, *args[1:])


# ---- parameters


def distribute(owner: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    """Make a parameter or buffer a DTensor, unless it is one already, as that of a module that several others use."""
    tensor = getattr(owner, name)
    if isinstance(tensor, DTensor):
        return
    split = distribute_tensor(tensor.detach(), mesh, [placement], src_data_rank=None)
    if name in owner._buffers:
        owner._buffers[name] = split
    else:
        owner.register_parameter(name, nn.Parameter(split, requires_grad=tensor.requires_grad))


def compute_locally(module: nn.Module, mesh: DeviceMesh, layouts: Mapping[str, Layout]) -> None:
    """Distribute parameters and buffers; while the module runs, they are the local parts, as plain tensors."""
    places: list[tuple[dict[str, Any], str, Placement]] = []
    for path, layout in layouts.items():
        prefix, _, name = path.rpartition(".")
        owner = module.get_submodule(prefix)
        if getattr(owner, name) is not None:
            distribute(owner, name, mesh, layout.placement)
            tensors: Any = owner._buffers if name in owner._buffers else owner._parameters
            places.append((tensors, name, layout.gradient))
    if not places:
        return
    whole: list[Any] = []

    def use_local(module: nn.Module, args: Any) -> None:
        whole.extend(tensors[name] for tensors, name, _ in places)
        for tensors, name, gradient in places:
            tensors[name] = tensors[name].to_local(grad_placements=[gradient])

    def use_whole(module: nn.Module, args: Any, output: Any) -> None:
        for (tensors, name, _), tensor in zip(places, whole, strict=True):
            tensors[name] = tensor
        whole.clear()

    module.register_forward_pre_hook(use_local)
    module.register_forward_hook(use_whole, always_call=True)


Places = list[tuple[nn.Module, str]]  # modules and names of one parameter


def list_tied_parameters(model: nn.Module) -> list[tuple[Places, bool]]:
    """The places of each parameter in the model, and whether it is trained."""
    places: dict[nn.Parameter, Places] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((module, name))
    return [(found, parameter.requires_grad) for parameter, found in places.items()]


def restore_tied_parameters(tied: Iterable[tuple[Places, bool]]) -> None:
    """Make parameters one again that were one before they were distributed."""
    for places, is_trained in tied:
        parameters: list[Any] = [module.get_parameter(name) for module, name in places]
        if len({parameter.placements for parameter in parameters}) > 1:
            owners = " and ".join(type(module).__name__ for module, _ in places)
            raise SaccadeError(f"{owners} share a parameter that tensor parallelism splits differently; {ONE_PROCESS}")
        for module, name in places:
            module.register_parameter(name, parameters[0].requires_grad_(is_trained))


# ---- dropout: each process draws the whole mask and uses its part


def run_dropout(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Dropout or stochastic depth of a distributed tensor; `forward` is that of the module."""
    if not module.training or getattr(module, "p", None) == 0.0:
        return x
    return multiply_by_whole_mask(forward, cast(DTensor, x))


def multiply_by_whole_mask(drop: Callable[[Tensor], Tensor], x: DTensor) -> DTensor:
    """Dropout of a distributed tensor: what `drop` makes of a whole tensor of ones is the mask."""
    mask = drop(torch.ones(x.shape, dtype=x.dtype, device=x.device))
    return cast(DTensor, x * distribute_tensor(mask, x.device_mesh, x.placements, src_data_rank=None))


class SplitKernels(NamedTuple):
    """The functions of `backends` for some of the heads: with dropout, they use their part of the mask of all heads."""

    mesh: DeviceMesh

    def drop(self, weights: Tensor, probability: float) -> Tensor:
        """Dropout of attention weights (B, H, Q, K)."""
        if not probability:
            return weights
        split = DTensor.from_local(weights, self.mesh, [Shard(HEAD_AXIS)], run_check=False)
        return multiply_by_whole_mask(partial(F.dropout, p=probability), split).to_local()

    def explicit_attention(
        self,
        *heads: Tensor,
        scale: float,
        allowed: Tensor | None,
        score: Score | None = None,
        score_term: Tensor | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        query, key, value = heads
        weights = masked_softmax(backends.add_term(scale, score, score_term)(query, key), allowed)
        return self.drop(weights, dropout).to(value.dtype) @ value, weights

    def sdpa_attention(
        self, *heads: Tensor, scale: float, mask: Mask | None, q_pos: Tensor, k_pos: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """With dropout, this holds the attention weights: the kernels of torch draw masks of their own."""
        if not dropout:
            return backends.sdpa_attention(*heads, scale=scale, mask=mask, q_pos=q_pos, k_pos=k_pos)
        allowed = None if mask is None else mask.to_dense(q_pos, k_pos)[:, None]
        return self.explicit_attention(*heads, scale=scale, allowed=allowed, dropout=dropout)[0]

    def window_attention(self, *heads: Tensor, scale: float, band: Band, dropout: float = 0.0) -> Tensor:
        return backends.window_attention(*heads, scale=scale, band=band, dropout=dropout, sdpa=self.sdpa_attention)
