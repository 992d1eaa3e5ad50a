"""How to lay a model out over several GPUs: bytes on each of them by every way, and the simplest that fits.

Let P be the bytes of weights, gradients and optimizer (16 for each parameter), g the GPUs. Data parallel keeps all of P
on each; ZeRO 1 shares out the optimizer, ZeRO 2 also the gradients, FSDP (ZeRO 3) also the weights, of which a layer at
a time is gathered. Gradients count beside what is kept for the backward pass, since several processes hold them in
buckets. Tensor parallel splits every matrix and what it makes over t GPUs of one machine; pipeline parallel
gives s groups of GPUs some layers each, and s micro-batches are under way at once.
"""

from __future__ import annotations

from typing import NamedTuple

from saccade.plan.counts import stack_of
from saccade.plan.memory import WORKSPACE, Memory
from saccade.train.machine import MARGIN

MACHINE = 8  # GPUs that are joined closely enough for tensor parallelism


class Choice(NamedTuple):
    name: str
    bytes: float  # on each GPU
    fits: bool


class Advice(NamedTuple):
    choices: tuple[Choice, ...]  # from the simplest to the most involved
    best: str  # the first that fits; nothing where none does
    fewest: int  # GPUs for FSDP with recompute and a single text on each


def advise(memory: Memory, *, gpus: int, batch_tokens: int) -> Advice:
    """For so many GPUs, each with a batch of its own."""
    kept_all, kept_few = (batch_bytes(memory, batch_tokens, recompute=again) for again in (None, True))
    fixed, share = memory.fixed, 1 / gpus
    gathered = 2 * largest_layer(memory)
    stays = fixed.stays + fixed.gradients
    alone = "one GPU" if gpus == 1 else "data parallel"
    ways = {alone: stays + fixed.narrow + kept_all, f"{alone}, recompute": stays + fixed.narrow + kept_few}
    if gpus > 1:
        ways |= {
            "ZeRO 1": stays - (1 - share) * fixed.optimizer + fixed.narrow + kept_all,
            "ZeRO 2": stays - (1 - share) * (fixed.optimizer + fixed.gradients) + fixed.narrow + kept_all,
            "FSDP": share * stays + gathered + kept_all,
            "FSDP, recompute": share * stays + gathered + kept_few,
            **split(memory, gpus, kept_few=kept_few),
        }
    room = MARGIN * memory.gpu.memory
    choices = tuple(Choice(name, size + WORKSPACE, size + WORKSPACE <= room) for name, size in ways.items())
    best = next((choice.name for choice in choices if choice.fits), "")
    one_text = batch_bytes(memory, min(memory.way.length, batch_tokens), recompute=True)
    left = room - gathered - one_text - WORKSPACE
    return Advice(choices, best, 0 if left <= 0 else max(1, -int(-stays // left)))


def split(memory: Memory, gpus: int, *, kept_few: float) -> dict[str, float]:
    """Tensor parallel inside machines and FSDP over them, and pipeline parallel over groups of layers."""
    stack = stack_of(memory.model.writer)
    if stack is None:
        return {}
    heads, stays = stack.blocks[0].self.project.shape[0], memory.fixed.stays + memory.fixed.gradients
    tensor = max(t for t in range(1, min(MACHINE, gpus) + 1) if gpus % t == 0 and heads % t == 0)
    groups = gpus // tensor
    stages = max(s for s in range(1, groups + 1) if groups % s == 0 and len(stack.blocks) % s == 0)
    found = {}
    if tensor > 1:
        gathered = 2 * largest_layer(memory) / tensor
        found[f"tensor {tensor} x FSDP {groups}, recompute"] = stays / gpus + gathered + kept_few / tensor
    if stages > 1:
        narrow = memory.fixed.narrow / (tensor * stages)
        found[f"tensor {tensor} x pipeline {stages}, recompute"] = (
            stays / (tensor * stages) + narrow + kept_few / tensor
        )
    return found


def batch_bytes(memory: Memory, tokens: int, *, recompute: bool | None) -> float:
    """What a batch takes: what is kept of it, where that is known, and its loss."""
    each = memory.kept(recompute=recompute)
    source = 0 if memory.model.reader is None else tokens
    written = memory.written(tokens)
    return (0.0 if each is None else each.of(source, written)) + memory.loss(written).total


def largest_layer(memory: Memory) -> float:
    """Bytes of a layer's matrices as products read them; of other stacks than the Transformer's, of all."""
    stack = stack_of(memory.model.writer)
    if stack is None:
        return memory.fixed.narrow
    return max(memory.way.narrow * sum(p.numel() for p in block.parameters()) for block in stack.blocks)
