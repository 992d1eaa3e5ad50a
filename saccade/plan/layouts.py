"""Memory per process and communication of the layouts in which `saccade train` can run on several GPUs.

Parameters, gradients and optimizer state are counted exactly, as the processes hold them. Bytes sent are those of ring
algorithms: (n - 1) / n of the tensor for a gather or a reduce-scatter over n processes, twice that for an all-reduce.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from saccade.config.protocols import TensorPlan
from saccade.config.schema import Recipe, Train
from saccade.errors import SaccadeError
from saccade.plan.memory import Memory
from saccade.train.distributed.mesh import (
    DEFAULT_MICRO_BATCHES,
    ParallelLayout,
    StateSizes,
    choose_shard_dim,
    measure_states,
)

MAX_TENSOR = 8  # processes of one machine, which has a fast interconnect


class LayoutPlan(NamedTuple):
    """What a process holds and sends in a layout."""

    layout: ParallelLayout
    states: StateSizes  # of the process that holds most
    sent: float  # bytes that each process sends in one optimizer step


def count_micro_batches(recipe: Recipe, gpus: int) -> int:
    """Return the micro-batches of a step on all GPUs together, as `saccade train` chooses them."""
    count = recipe.train.accumulate
    return DEFAULT_MICRO_BATCHES if gpus > 1 and count == 1 else count


def plan_layouts(memory: Memory, recipe: Recipe, *, gpus: int) -> list[LayoutPlan]:
    """Plan replicas, shards, and each of them with as much tensor parallelism as the model allows."""
    tensor = find_tensor_size(memory.model, gpus)
    layouts = [ParallelLayout(data=gpus), ParallelLayout(shard=gpus)]
    if tensor > 1:
        layouts += [ParallelLayout(gpus // tensor, 1, tensor), ParallelLayout(1, gpus // tensor, tensor)]
    found = []
    for layout in dict.fromkeys(layouts):
        states = measure_process(memory.model, recipe.train, layout, place=(0, 0))
        found.append(LayoutPlan(layout, states, count_sent_bytes(memory, recipe, layout)))
    return found


def find_tensor_size(model: nn.Module, gpus: int) -> int:
    """Return the largest number of processes of one machine that tensor parallelism can split the model over."""
    from saccade.train.distributed.tensor import check_tensor_parallel

    for size in range(min(MAX_TENSOR, gpus), 1, -1):
        try:
            check_tensor_parallel(model, size)  # type: ignore[arg-type]
        except SaccadeError:
            continue
        if gpus % size == 0:
            return size
    return 1


def measure_process(model: nn.Module, settings: Train, layout: ParallelLayout, *, place: tuple[int, int]) -> StateSizes:
    """Count what the process at a place in the dimensions shard and tensor holds, of a model on the meta device."""
    axes, total = list_tensor_axes(model), [0, 0]
    for parameter in model.parameters():
        shape, axis = list(parameter.shape), axes.get(id(parameter))
        if layout.tensor > 1 and axis is not None:
            shape[axis] = get_part(shape[axis], layout.tensor, place[1])
        if not layout.is_plain and shape:
            split = () if axis is None or layout.tensor == 1 else (axis,)
            dim = choose_shard_dim(shape, layout.shard, split)
            shape[dim] = get_part(shape[dim], layout.shard, place[0])
        size = parameter.element_size()
        for length in shape:
            size *= length
        total[0] += size
        total[1] += size if parameter.requires_grad else 0
    return StateSizes(total[0], total[1], 2 * total[1], total[0] if settings.ema else 0)


def get_part(length: int, count: int, number: int) -> int:
    """Return the length of part `number` of `count` parts, all of the same length but the last ones."""
    each = -(-length // count)
    return max(0, min(each, length - number * each))


def list_tensor_axes(model: nn.Module) -> dict[int, int]:
    """Return the axis along which tensor parallelism splits each parameter, by its id; others are replicated."""
    axes: dict[int, int] = {}
    for module in model.modules():
        plan: TensorPlan = getattr(module, "tensor_plan", TensorPlan())
        for path in (*plan.columns, *plan.heads, *plan.embeddings, *plan.outputs):
            axes |= {id(parameter): 0 for parameter in module.get_submodule(path).parameters()}
        for path in plan.rows:
            axes[id(module.get_submodule(path).weight)] = 1
        parameters = dict(module.named_parameters())
        for name, axis in plan.head_axes.items():
            if axis is not None and name in parameters:
                axes[id(parameters[name])] = axis
    return axes


def count_sent_bytes(memory: Memory, recipe: Recipe, layout: ParallelLayout) -> float:
    """Count the bytes that a process sends in a step: parameters, gradients, and activations of tensor parallelism."""
    whole = measure_states(memory.model, recipe.train)
    sharing = layout.data * layout.shard
    each = -(-count_micro_batches(recipe, sharing * layout.tensor) // sharing)  # micro-batches of one process
    own = whole.gradients / layout.tensor
    if layout.is_plain:
        return 2 * get_ring_share(layout.data) * own
    again = whole.parameters - measure_root(memory.model)  # blocks are gathered for the backward pass once more
    gathered = get_ring_share(layout.shard) * ((whole.parameters + again) / layout.tensor + own)
    reduced = 2 * get_ring_share(layout.data) * own / layout.shard
    return each * (gathered + reduced + count_activation_bytes(memory, recipe, layout))


def measure_root(model: nn.Module) -> int:
    """Count the bytes of the parameters outside of blocks, which FSDP2 gathers once for a whole micro-batch."""
    units = [unit for stack in model.modules() for unit in getattr(stack, "shard_units", ())]
    blocks = {id(parameter) for unit in units for parameter in unit.parameters()}
    return sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in blocks)


def count_activation_bytes(memory: Memory, recipe: Recipe, layout: ParallelLayout) -> float:
    """Count what tensor parallelism sends for a micro-batch: four collectives per sublayer, two of them forward."""
    tokens, total = recipe.train.batch_tokens, 0.0
    for module in memory.model.modules():
        plan: TensorPlan = getattr(module, "tensor_plan", TensorPlan())
        total += 4 * len(plan.sublayers) * tokens * getattr(module, "dim", memory.model.dim)
    return get_ring_share(layout.tensor) * total * memory.setup.residual_bytes


def get_ring_share(count: int) -> float:
    return (count - 1) / count
