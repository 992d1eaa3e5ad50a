"""Memory per process and communication of the layouts in which `saccade train` can run on several GPUs.

Parameters, gradients and optimizer state are counted exactly, as the processes hold them. Bytes sent are those of ring
algorithms: (n - 1) / n of the tensor for a gather or a reduce-scatter over n processes, twice that for an all-reduce.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import nn

from saccade.config.protocols import TensorPlan, get_tensor_plan
from saccade.config.schema import Recipe, Train
from saccade.errors import SaccadeError
from saccade.layers.attention.multihead import CrossAttention
from saccade.plan.memory import Memory
from saccade.train.distributed.mesh import (
    DEFAULT_MICRO_BATCHES,
    ParallelLayout,
    StateSizes,
    choose_shard_dim,
)

LOSS_NUMBERS = 3  # that processes exchange for each row of logits: its maximum, sum of exponentials and target
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
        size = measure_part(parameter, axes.get(id(parameter)), layout, place=place)
        total[0] += size
        total[1] += size if parameter.requires_grad else 0
    return StateSizes(total[0], total[1], 2 * total[1], total[0] if settings.ema else 0)


def measure_part(parameter: nn.Parameter, axis: int | None, layout: ParallelLayout, *, place: tuple[int, int]) -> int:
    """Count the bytes of a parameter in one process; tensor parallelism splits it along `axis`."""
    shape = list(parameter.shape)
    if layout.tensor > 1 and axis is not None:
        shape[axis] = get_part(shape[axis], layout.tensor, place[1])
    if not layout.is_plain and shape:
        split = () if axis is None or layout.tensor == 1 else (axis,)
        dim = choose_shard_dim(shape, layout.shard, split)
        shape[dim] = get_part(shape[dim], layout.shard, place[0])
    return math.prod(shape) * parameter.element_size()


def get_part(length: int, count: int, number: int) -> int:
    """Return the length of part `number` of `count` parts, all of the same length but the last ones."""
    each = -(-length // count)
    return max(0, min(each, length - number * each))


def list_tensor_axes(model: nn.Module) -> dict[int, int]:
    """Return the axis along which tensor parallelism splits each parameter, by its id; others are replicated."""
    axes: dict[int, int] = {}
    for module in model.modules():
        plan = get_tensor_plan(module)
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
    sharing, model = layout.data * layout.shard, memory.model
    each = -(-count_micro_batches(recipe, sharing * layout.tensor) // sharing)  # micro-batches of one process
    split = layout._replace(data=1, shard=1)
    own = measure_process(model, recipe.train, split, place=(0, 0))
    if layout.is_plain:
        return 2 * get_ring_share(layout.data) * own.gradients
    again = own.parameters - measure_root(model, split)  # blocks are gathered for the backward pass once more
    gathered = get_ring_share(layout.shard) * (own.parameters + again + own.gradients)
    reduced = 2 * get_ring_share(layout.data) * own.gradients / layout.shard
    activations = 0.0
    if layout.tensor > 1:
        whole = count_activation_bytes(memory, recipe, tokens=recipe.train.batch_tokens)
        activations = get_ring_share(layout.tensor) * whole
    return each * (gathered + reduced + activations)


def measure_root(model: nn.Module, layout: ParallelLayout) -> int:
    """Count the bytes of the parameters outside of blocks, which FSDP2 gathers once for a whole micro-batch."""
    units = [unit for stack in model.modules() for unit in getattr(stack, "shard_units", ())]
    blocks, axes = {id(parameter) for unit in units for parameter in unit.parameters()}, list_tensor_axes(model)
    root = [parameter for parameter in model.parameters() if id(parameter) not in blocks]
    return sum(measure_part(parameter, axes.get(id(parameter)), layout, place=(0, 0)) for parameter in root)


def count_activation_bytes(memory: Memory, recipe: Recipe, *, tokens: int) -> int:
    """Count the bytes that tensor parallelism takes round the ring for a micro-batch of this many tokens."""
    model, size = memory.model, memory.setup.residual_bytes
    sides = ((model.reader, tokens), (model.writer, memory.count_target_tokens(tokens)))
    total = 0
    for side, length in sides:
        for module in () if side is None else side.modules():
            plan = get_tensor_plan(module)
            total += size * length * count_vocabulary_numbers(module, plan)
            if plan.is_stack:
                total += size * length * count_stack_numbers(module, recompute=recipe.train.recompute)
            if isinstance(module, CrossAttention):  # sums the gradients of memory from all heads
                projections = [module.get_submodule(path) for path in plan.heads if path != "query"]
                total += size * tokens * sum(2 * each.get_parameter("weight").shape[-1] for each in projections)
            norms = [module.get_submodule(path) for path in plan.norms]  # each process has gradients of its positions
            total += sum(2 * one.numel() * one.element_size() for norm in norms for one in norm.parameters())
    return total


def count_stack_numbers(stack: nn.Module, *, recompute: bool) -> int:
    """Count the numbers that the processes exchange for each position of hidden states; blocks may be shared."""
    passes = 2  # gathered at the end; its gradient at the beginning
    for _, module in stack.named_modules(remove_duplicate=False):
        if count := len(get_tensor_plan(module).sublayers):
            passes += 4 * count  # gathered before a sublayer and scattered after it, and the same backward
            passes += 2 * count - 1 if recompute else 0  # but for the output of the last one, which is not needed
    width: Any = stack.dim
    return passes * int(width)


def count_vocabulary_numbers(module: nn.Module, plan: TensorPlan) -> int:
    """Count the numbers that are exchanged for each token by tables and output layers, in all-reduces of two passes."""
    widths = (module.get_submodule(path).get_parameter("weight").shape[-1] for path in plan.embeddings + plan.outputs)
    return 2 * (sum(widths) + LOSS_NUMBERS * len(plan.outputs))


def get_ring_share(count: int) -> float:
    return (count - 1) / count
