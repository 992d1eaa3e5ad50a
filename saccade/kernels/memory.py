"""Memory of operations on a CPU: a result that does not fit raises an OutOfMemoryError before it is allocated.

Linux grants more memory than there is, and ends the process that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.allocation import format_bytes, is_free

COPIES = 2  # of the output of a linear layer: also what is computed from it
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


class MemoryGuard(TorchDispatchMode):
    """Raises an OutOfMemoryError before an operation on the CPU whose result does not fit into the free memory.

    It sees every operation, backward ones too. The size of a result is that in RESULT_SIZES, or else the shape to which
    the tensors of the operation broadcast.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unchecked = 0  # bytes of results since the last look at the memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types:  # not for tensors that are distributed
            return func(*args, **kwargs)
        with self:  # an operation that is made of others is counted by these
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if not func.is_view and not func._schema.is_mutable:
            self.check(func, args, kwargs)
        return func(*args, **kwargs)

    def check(self, func: Any, args: Any, kwargs: Any) -> None:
        numbers, example = measure_result(func.overloadpacket.__name__, args)
        dtype = kwargs.get("dtype") or (torch.get_default_dtype() if example is None else example.dtype)
        if example is not None and example.device.type != "cpu":
            return
        needed = numbers * dtype.itemsize
        self.unchecked += needed
        if self.unchecked >= MIN_CHECKED_BYTES:
            self.unchecked = 0
            if not is_free(needed + MIN_CHECKED_BYTES):
                raise torch.OutOfMemoryError(f"out of memory: {format_bytes(needed)} for a result of {func}")


def measure_result(name: str, args: Any) -> tuple[int, Tensor | None]:
    """How many numbers an operation results in, at most, and one of its tensors."""
    tensors = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg]) if isinstance(x, Tensor)]
    if name in RESULT_SIZES:
        return RESULT_SIZES[name](*args), tensors[0]
    if not tensors or name.startswith("new_"):  # a shape
        shape = next((arg for arg in args if isinstance(arg, list | tuple)), args[:1])
        return math.prod(size for size in shape if isinstance(size, int)), next(iter(tensors), None)
    if name == "cat":
        return sum(x.numel() for x in tensors), tensors[0]
    try:
        numbers = torch.broadcast_shapes(*(x.shape for x in tensors)).numel()
    except RuntimeError:
        numbers = max(x.numel() for x in tensors)
    return numbers, tensors[0]


def _reduce(x: Tensor, dims: Any = None, *_: Any) -> int:
    reduced = range(x.ndim) if dims is None else dims if isinstance(dims, list | tuple) else [dims]
    return x.numel() // max(1, math.prod(x.shape[dim] for dim in reduced))


RESULT_SIZES: dict[str, Callable[..., int]] = {
    "sum": _reduce,
    "mean": _reduce,
    "mm": lambda a, b, *_: a.shape[0] * b.shape[1],
    "bmm": lambda a, b, *_: a.shape[0] * a.shape[1] * b.shape[2],
    "addmm": lambda _, a, b, *__: a.shape[0] * b.shape[1],
    "baddbmm": lambda _, a, b, *__: a.shape[0] * a.shape[1] * b.shape[2],
    "embedding": lambda weight, indices, *_: indices.numel() * weight.shape[1],
    "convolution": lambda x, weight, *_: x.numel() // x.shape[1] * max(weight.shape[:2]),
    "im2col": lambda x, size, *_: x.numel() * math.prod(size),
    "repeat": lambda x, counts: x.numel() * math.prod(counts),
}


def find_widest(model: nn.Module) -> int:
    """The most numbers that a layer with weights on the CPU may output for one position."""
    shapes = [parameter.shape for parameter in model.parameters() if parameter.device.type == "cpu"]
    return max((shape.numel() // max(1, shape[-1]) for shape in shapes if len(shape) > 1), default=0)


@contextmanager
def guard_memory(widest: int) -> Iterator[None]:
    """Check operations inside the block, if the widest layer could outgrow the free memory of the CPU.

    Layers that are packed for inference check themselves.
    """
    largest = COPIES * 4 * widest * MAX_POSITIONS
    if largest < MIN_CHECKED_BYTES or is_free(largest):
        yield
        return
    with MemoryGuard():
        yield
