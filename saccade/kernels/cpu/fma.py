"""Float32 linear layers in C, where C kernels are available.

They are as fast as oneDNN for many rows and faster for few, as in decoding, with one packing of the weights for all.
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
from saccade.kernels.cpu.native import NativeLinear
from saccade.kernels.cpu.prepared import PackedLinear

SOURCE = Path(__file__).with_suffix(".c")
BLOCK_OUTPUTS = 32  # as in fma.c


def build_float_linear(
    weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, *, single_row: bool = False, relu: bool = False
) -> nn.Module:
    """The faster linear layer that this machine supports; the arguments are those of `PackedLinear`."""
    if weight.dtype != torch.float32 or load_kernel() is None:
        return PackedLinear(weight, bias, single_row=single_row, relu=relu)
    return FmaLinear(weight, bias, relu=relu)


class FloatLinearStruct(ctypes.Structure):
    """The structure FloatLinear of fma.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        ("relu", ctypes.c_int),
    ]


class FmaLinear(NativeLinear):
    """Like `PackedLinear`; the result of a row does not depend on the other rows."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, *, relu: bool = False) -> None:
        weight = weight.detach()
        outputs, inputs = weight.shape
        super().__init__(in_features=inputs, out_features=outputs, relu=relu)
        padded = F.pad(weight, (0, 0, 0, -outputs % BLOCK_OUTPUTS))
        self.weight = padded.unflatten(0, (-1, BLOCK_OUTPUTS)).transpose(1, 2).contiguous()
        bias = weight.new_zeros(outputs) if bias is None else bias.detach()
        self.bias = F.pad(bias, (0, -outputs % BLOCK_OUTPUTS)).contiguous()

    @property
    def multiply(self) -> Any:
        return load_kernel()

    def build_struct(self) -> FloatLinearStruct:
        return FloatLinearStruct(
            self.weight.data_ptr(), self.bias.data_ptr(), self.in_features, self.out_features, self.relu
        )


@lru_cache(1)
def load_kernel() -> Any:
    """The compiled function; None where C kernels are not available."""
    pointer = ctypes.c_void_p
    kinds = (ctypes.POINTER(FloatLinearStruct), pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int)
    return native.load_function(SOURCE, "float_product", *kinds)
