"""One decoding step of a stack in one call of C, where the stack exports its weights and its state lies as C needs it.

Where it does not apply, the blocks take the step themselves; they are the reference.
"""

from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.kernels.cpu.stack_step import StackStep, prepare_step
from saccade.kernels.weights import StackWeights, Unsupported
from saccade.layers.attention.cache import AttentionState
from saccade.layers.record import recording


@runtime_checkable
class DescribedStack(Protocol):
    """A stack that declares `fused_cpu_step`."""

    def describe_step(self) -> StackWeights: ...


# By stack: the version of its weights, and what takes its steps, where something does.
PREPARED: WeakKeyDictionary[DescribedStack, tuple[object, StackStep | None]] = WeakKeyDictionary()


def take_fused_step(
    stack: DescribedStack, version: object, x: Float[Tensor, "B n D"], state: AttentionState
) -> Float[Tensor, "B n D"] | None:
    """The next position of every row; None where the blocks have to take the step. The caller moves the state.

    `version` is another object once weights were laid out anew.
    """
    if x.shape[1] != 1 or x.dtype != torch.float32 or x.device.type != "cpu":
        return None
    if not state.even or torch.is_grad_enabled() or recording():
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
