"""Refuse a model that does not fit into memory, before its tensors are created."""

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from saccade.allocation import check_allocation, format_bytes
from saccade.errors import SaccadeError

FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "arange", "eye", "new_empty", "new_zeros", "new_ones")
ELEMENT_BYTES = 4  # of float32
MIN_CHECKED_BYTES = 2**26  # the tensors of small models are not worth a look at the memory
MAX_TENSOR_BYTES = 2**62  # torch counts bytes with 64 bits
HINT = "lower the sizes of the recipe (dim, layers, ff, vocabulary, lengths)"


class OversizedTensorError(Exception):
    """A tensor of a model, or all of them together, are larger than was allowed."""


class AllocationGuard(TorchFunctionMode):
    """Checks the size of each new tensor; on the meta device, which allocates nothing, only that it can exist.

    A tensor of more than `limit` bytes, and tensors of more than `total` bytes together, raise an OversizedTensorError.
    """

    def __init__(self, limit: int = MAX_TENSOR_BYTES, *, total: int | None = None) -> None:
        super().__init__()
        self.limit, self.total, self.used = limit, total, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in FACTORIES:
            sizes = get_sizes(name, args, kwargs)
            needed = ELEMENT_BYTES * math.prod(sizes)
            self.used += needed
            if self.total is not None and self.used > self.total:
                raise OversizedTensorError
            if needed >= MIN_CHECKED_BYTES:
                what = f"a tensor {tuple(sizes)} of the model"
                if needed > MAX_TENSOR_BYTES:
                    raise SaccadeError(f"{what} would need {format_bytes(needed)}, more than any memory; {HINT}")
                if needed > self.limit:
                    raise OversizedTensorError
                if torch.get_default_device().type != "meta":
                    check_allocation(needed, what, HINT)
        return func(*args, **kwargs)


def get_sizes(name: str, args: Any, kwargs: Any) -> list[int]:
    """The shape that a factory function is asked for; [0] if it is not given as plain numbers."""
    given = args[1:] if name.startswith("new_") else args
    shape = kwargs.get("size", given[0] if given and isinstance(given[0], tuple | list) else given)
    shape = shape[:1] if name == "full" and shape is given else shape
    numbers = [size for size in shape if isinstance(size, int)]
    if name == "arange":
        return [max(numbers, default=0)]
    return [*numbers, *numbers] if name == "eye" and len(numbers) == 1 else numbers or [0]
