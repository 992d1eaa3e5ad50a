"""One decoding step of a stack in one call of C, where the stack exports its weights and its state lies as C needs it.

Where it does not apply, the blocks take the step themselves; they are the reference.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.kernels.cpu.stack_step import StackStep, prepare_step
from saccade.kernels.weights import StackWeights, Unsupported
from saccade.layers.memory import AttentionState
from saccade.layers.record import recording


@runtime_checkable
class DescribedStack(Protocol):
    """A stack that declares `fused_cpu_step`."""

    def describe_step(self) -> StackWeights: ...


def take_fused_step(
    stack: DescribedStack, x: Float[Tensor, "B n D"], state: AttentionState
) -> Float[Tensor, "B n D"] | None:
    """The next position of every row; None where the blocks have to take the step. The caller moves the state."""
    if x.shape[1] != 1 or x.dtype != torch.float32 or x.device.type != "cpu":
        return None
    try:
        step, caches = prepare_fused_step(stack, state)
    except Unsupported:
        return None
    return step(x, state, caches)


def prepare_fused_step(stack: DescribedStack, state: AttentionState) -> tuple[StackStep, object]:
    """What takes the steps of a stack from a state on, and where the state's keys and values lie."""
    if torch.is_grad_enabled():
        raise Unsupported("gradients are wanted")
    if recording():
        raise Unsupported("attention weights are recorded")
    if not state.even:
        raise Unsupported("rows have different lengths")
    step = prepare_step(stack.describe_step())
    return step, step.locate(state)
