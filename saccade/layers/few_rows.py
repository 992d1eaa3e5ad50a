"""Float32 products of few rows in C, where the processor and a compiler allow it: oneDNN takes longer for these."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from saccade.layers import native

SOURCE = Path(__file__).with_suffix(".c")
WIDE = 32  # outputs of a block, as in the source
MOST = 128  # rows; with more, oneDNN is as fast


class Product(ctypes.Structure):
    """What stays the same from call to call, as in the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        ("relu", ctypes.c_int),
    ]


class FewRows:
    """x W^T + b, for at most `MOST` rows."""

    room = 0  # numbers for each row that a call needs beside

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, *, relu: bool) -> None:
        self.outputs, self.inputs = weight.shape
        self.relu = relu
        whole = F.pad(weight, (0, 0, 0, -self.outputs % WIDE))
        self.weight = whole.unflatten(0, (-1, WIDE)).transpose(1, 2).contiguous()
        start = weight.new_zeros(self.outputs) if bias is None else bias.detach()
        self.bias = F.pad(start, (0, -self.outputs % WIDE)).contiguous()
        self._product: Product | None = None

    @property
    def product(self) -> Product:
        if self._product is None:
            pointers = (self.weight.data_ptr(), self.bias.data_ptr())
            self._product = Product(*pointers, self.inputs, self.outputs, self.relu)
        return self._product

    def __call__(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.outputs)
        multiply: Any = kernel()
        rows = x.numel() // self.inputs
        multiply(self.product, x.data_ptr(), y.data_ptr(), None, rows, torch.get_num_threads())
        return y

    def __getstate__(self) -> dict[str, Any]:
        """A copy has weights of its own, at other addresses."""
        return {**self.__dict__, "_product": None}


@lru_cache(1)
def kernel() -> Any:
    """The compiled function; None where there is none."""
    found = native.library(SOURCE)
    if found is None:
        return None
    multiply = found.float_product
    pointer = ctypes.c_void_p
    multiply.argtypes = [ctypes.POINTER(Product), pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int]
    multiply.restype = None
    return multiply
