"""Estimate the memory per GPU of each way to distribute a model, and recommend the simplest that fits.

Weights, gradients and optimizer take 16 bytes per parameter. Data parallelism keeps all of them on each GPU; ZeRO 1
shards the optimizer, ZeRO 2 also the gradients, FSDP (ZeRO 3) also the weights, of which it gathers one layer at a
time. Gradients are counted in addition to activations, since distributed training holds them in buckets. Tensor
parallelism splits every matrix and its output over t GPUs of one node; pipeline parallelism gives each of s groups of
GPUs some of the layers, with s micro-batches in flight.
"""

from __future__ import annotations

from typing import NamedTuple

from saccade.plan.counts import get_transformer_stack
from saccade.plan.memory import WORKSPACE_BYTES, Memory
from saccade.train.machine import MEMORY_MARGIN

GPUS_PER_NODE = 8  # GPUs with a fast interconnect, for tensor parallelism


class ShardingOption(NamedTuple):
    name: str
    bytes: float  # per GPU
    fits: bool


class ShardingAdvice(NamedTuple):
    options: tuple[ShardingOption, ...]  # from the simplest to the most complex
    best: str  # the first that fits; "" if none does
    min_gpus: int  # for FSDP with recompute and one sequence per GPU


def recommend_sharding(memory: Memory, *, gpus: int, batch_tokens: int) -> ShardingAdvice:
    """Compare the options for this many GPUs, each with its own batch of `batch_tokens`."""
    batch, recomputed = (estimate_batch(memory, batch_tokens, recompute=recompute) for recompute in (None, True))
    fixed, share = memory.fixed, 1 / gpus
    gathered = 2 * get_largest_layer(memory)
    states = fixed.persistent + fixed.gradients
    simplest = "one GPU" if gpus == 1 else "data parallel"
    sizes = {
        simplest: states + fixed.matmul_copies + batch,
        f"{simplest}, recompute": states + fixed.matmul_copies + recomputed,
    }
    if gpus > 1:
        sizes |= {
            "ZeRO 1": states - (1 - share) * fixed.optimizer + fixed.matmul_copies + batch,
            "ZeRO 2": states - (1 - share) * (fixed.optimizer + fixed.gradients) + fixed.matmul_copies + batch,
            "FSDP": share * states + gathered + batch,
            "FSDP, recompute": share * states + gathered + recomputed,
            **estimate_model_parallel(memory, gpus, recomputed_bytes=recomputed),
        }
    limit = MEMORY_MARGIN * memory.gpu.memory
    options = tuple(
        ShardingOption(name, size + WORKSPACE_BYTES, size + WORKSPACE_BYTES <= limit) for name, size in sizes.items()
    )
    best = next((option.name for option in options if option.fits), "")
    one_sequence = estimate_batch(memory, min(memory.setup.length, batch_tokens), recompute=True)
    left = limit - gathered - one_sequence - WORKSPACE_BYTES
    return ShardingAdvice(options, best, 0 if left <= 0 else max(1, -int(-states // left)))


def estimate_model_parallel(memory: Memory, gpus: int, *, recomputed_bytes: float) -> dict[str, float]:
    """Estimate tensor parallelism within nodes combined with FSDP, and combined with pipeline parallelism."""
    stack = get_transformer_stack(memory.model.writer)
    if stack is None:
        return {}
    heads, states = stack.blocks[0].self.project.shape[0], memory.fixed.persistent + memory.fixed.gradients
    tensor = max(t for t in range(1, min(GPUS_PER_NODE, gpus) + 1) if gpus % t == 0 and heads % t == 0)
    groups = gpus // tensor
    stages = max(s for s in range(1, groups + 1) if groups % s == 0 and len(stack.blocks) % s == 0)
    found = {}
    if tensor > 1:
        gathered = 2 * get_largest_layer(memory) / tensor
        found[f"tensor {tensor} x FSDP {groups}, recompute"] = states / gpus + gathered + recomputed_bytes / tensor
    if stages > 1:
        copies = memory.fixed.matmul_copies / (tensor * stages)
        found[f"tensor {tensor} x pipeline {stages}, recompute"] = (
            states / (tensor * stages) + copies + recomputed_bytes / tensor
        )
    return found


def estimate_batch(memory: Memory, tokens: int, *, recompute: bool | None) -> float:
    """Return the bytes of a batch: its activations, if known, and its loss."""
    each = memory.get_activations(recompute=recompute)
    source = 0 if memory.model.reader is None else tokens
    target = memory.count_target_tokens(tokens)
    return (0.0 if each is None else each.get_total(source, target)) + memory.get_loss(target).total


def get_largest_layer(memory: Memory) -> float:
    """Return the bytes of the largest layer in the matmul dtype; of all layers for stacks that are not Transformers."""
    stack = get_transformer_stack(memory.model.writer)
    if stack is None:
        return memory.fixed.matmul_copies
    return max(memory.setup.matmul_bytes * sum(p.numel() for p in block.parameters()) for block in stack.blocks)
