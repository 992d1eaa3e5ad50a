"""One decoding step of a stack in a single C call on a CPU; the blocks are the reference and the fallback."""

from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.kernels.cpu.stack_step import StackStep, prepare_step
from saccade.kernels.weights import StackWeights, Unsupported
from saccade.layers.attention.cache import AttentionState
from saccade.layers.record import is_recording


@runtime_checkable
class DescribedStack(Protocol):
    """A stack that declares the capability `fused_cpu_step`."""

    def describe_step(self) -> StackWeights: ...


# By stack: the version of its weights, and its prepared C step; None where C does not support it.
PREPARED: WeakKeyDictionary[DescribedStack, tuple[object, StackStep | None]] = WeakKeyDictionary()


def take_fused_step(
    stack: DescribedStack, version: object, x: Float[Tensor, "B n D"], state: AttentionState
) -> Float[Tensor, "B n D"] | None:
    """Decode one position of every row; None where the C step does not apply. The caller advances the state.

    `version` is an object that changes identity when the layout of the weights changes.
    """
    if x.shape[1] != 1 or x.dtype != torch.float32 or x.device.type != "cpu":
        return None
    if not state.is_uniform or torch.is_grad_enabled() or is_recording():
        return None
    prepared = PREPARED.get(stack)
    if prepared is None or prepared[0] is not version:
        prepared = PREPARED[stack] = version, _prepare(stack)
    step = prepared[1]
    caches = None if step is None else step.find_caches(state)
    return None if step is None or caches is None else step(x, state, caches)


def _prepare(stack: DescribedStack) -> StackStep | None:
    try:
        return prepare_step(stack.describe_step())
    except Unsupported:
        return None
