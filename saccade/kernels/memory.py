"""Memory of products on a CPU: one that does not fit raises an OutOfMemoryError before it is allocated.

Linux grants more memory than there is, and ends the process that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from saccade.allocation import format_bytes, is_free

COPIES = 2  # of the output of a linear layer: also what is computed from it
TRAINING_COPIES = 4  # also the gradients of both
MIN_CHECKED_BYTES = 2**26  # smaller outputs are not worth a look at the memory
MAX_POSITIONS = 2**16  # of a batch; more are not expected
# Messages of a RuntimeError: CUDA and Apple GPUs; the allocator of CPUs on Linux and macOS, on Windows; cuBLAS
OUT_OF_MEMORY = ("out of memory", "DefaultCPUAllocator", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, or the error arose while such an error was handled, as at the end of a CUDA capture."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY):
            return True
        error = error.__context__
    return False


def check_product(rows: int, outputs: int, *, element_size: int = 4, copies: int = COPIES) -> None:
    """Raise an OutOfMemoryError if `rows` times `outputs` numbers, and what is computed from them, are not free."""
    needed = copies * element_size * rows * outputs
    if needed >= MIN_CHECKED_BYTES and not is_free(needed):
        raise torch.OutOfMemoryError(f"out of memory: {format_bytes(needed)} for {rows:,} rows of {outputs:,} numbers")


class ProductGuard(TorchFunctionMode):
    """Lets a linear layer whose output does not fit into the free memory of the CPU raise an OutOfMemoryError."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and isinstance(args[0], torch.Tensor):
            x, weight = args[:2]
            copies = TRAINING_COPIES if torch.is_grad_enabled() else COPIES
            rows = x.numel() // max(1, x.shape[-1])
            check_product(rows, weight.shape[0], element_size=x.element_size(), copies=copies)
        return func(*args, **(kwargs or {}))


def find_widest(model: nn.Module) -> int:
    """The most numbers that a layer with weights on the CPU may output for one position."""
    shapes = [parameter.shape for parameter in model.parameters() if parameter.device.type == "cpu"]
    return max((shape.numel() // max(1, shape[-1]) for shape in shapes if len(shape) > 1), default=0)


@contextmanager
def guard_products(widest: int) -> Iterator[None]:
    """Check linear layers inside the block, if the widest could outgrow the free memory of the CPU.

    Layers that are packed for inference check themselves.
    """
    largest = COPIES * 4 * widest * MAX_POSITIONS
    if largest < MIN_CHECKED_BYTES or is_free(largest):
        yield
        return
    with ProductGuard():
        yield
