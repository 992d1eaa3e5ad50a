"""Float32 products in C, where the processor and a compiler allow it.

They are as fast as oneDNN's for many rows and faster for few, as in decoding, and one layout of the weights serves all.
"""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.kernels.cpu import native
from saccade.kernels.cpu.native import NativeProduct
from saccade.kernels.cpu.prepared import PackedLinear

SOURCE = Path(__file__).with_suffix(".c")
WIDE = 32  # outputs of a block, as in the source


def float_linear(
    weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, *, single: bool = False, relu: bool = False
) -> nn.Module:
    """The faster of the two products that this machine has; the arguments are those of `PackedLinear`."""
    if weight.dtype != torch.float32 or kernel() is None:
        return PackedLinear(weight, bias, single=single, relu=relu)
    return FmaLinear(weight, bias, relu=relu)


class Product(ctypes.Structure):
    """What stays the same from call to call, as in the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        ("relu", ctypes.c_int),
    ]


class FmaLinear(NativeProduct):
    """What `PackedLinear` computes; a row gives the same in any company."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, *, relu: bool = False) -> None:
        weight = weight.detach()
        outputs, inputs = weight.shape
        super().__init__(inputs=inputs, outputs=outputs, relu=relu)
        whole = F.pad(weight, (0, 0, 0, -outputs % WIDE))
        self.weight = whole.unflatten(0, (-1, WIDE)).transpose(1, 2).contiguous()
        start = weight.new_zeros(outputs) if bias is None else bias.detach()
        self.bias = F.pad(start, (0, -outputs % WIDE)).contiguous()

    @property
    def multiply(self) -> Any:
        return kernel()

    def make_structure(self) -> Product:
        return Product(self.weight.data_ptr(), self.bias.data_ptr(), self.inputs, self.outputs, self.relu)


@lru_cache(1)
def kernel() -> Any:
    """The compiled function; None where there is none."""
    pointer = ctypes.c_void_p
    kinds = (ctypes.POINTER(Product), pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int)
    return native.function(SOURCE, "float_product", *kinds)
