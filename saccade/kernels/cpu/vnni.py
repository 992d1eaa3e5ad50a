"""Int8 linear layers in C, where C kernels are available.

One call quantizes the rows, multiplies, dequantizes, adds the bias and applies the ReLU. oneDNN does only the product,
with an overhead that is longer than a small product takes.
"""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, Shaped
from torch import Tensor, nn

from saccade.kernels.cpu import native
from saccade.kernels.cpu.native import NativeLinear
from saccade.kernels.cpu.prepared import INT8_MAX, ZERO_POINT, Int8Linear

SOURCE = Path(__file__).with_suffix(".c")
BLOCK_OUTPUTS, STEP_INPUTS = 32, 4  # as in vnni.c


def build_int8_linear(
    weight: Int8[Tensor, "N K"],
    scale: Float[Tensor, " N"],
    bias: Float[Tensor, " N"] | None,
    *,
    exact: bool = False,
    relu: bool = False,
    nonnegative: bool = False,
) -> nn.Module:
    """The faster int8 linear layer that this machine supports; the arguments are those of `Int8Linear`."""
    if load_kernel() is None:
        return Int8Linear(weight, scale, bias, exact=exact, relu=relu, nonnegative=nonnegative)
    return VnniLinear(weight, scale, bias, relu=relu, nonnegative=nonnegative)


class Int8LinearStruct(ctypes.Structure):
    """The structure Int8Linear of vnni.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "start", "scale", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "steps")),
        *((name, ctypes.c_int) for name in ("nonnegative", "relu")),
    ]


class VnniLinear(NativeLinear):
    """Like `Int8Linear`, but few rows are quantized too: the result of a row does not depend on the other rows."""

    def __init__(
        self,
        weight: Int8[Tensor, "N K"],
        scale: Float[Tensor, " N"],
        bias: Float[Tensor, " N"] | None,
        *,
        relu: bool = False,
        nonnegative: bool = False,
    ) -> None:
        (outputs, inputs), packed = weight.shape, pack_blocks(weight)
        scratch = packed.shape[1] + 1  # the quantized inputs, four to a float, and the maximum of a row
        super().__init__(in_features=inputs, out_features=outputs, relu=relu, scratch_floats=scratch)
        max_level, zero_point = (2 * INT8_MAX + 1, 0) if nonnegative else (INT8_MAX, ZERO_POINT)
        self.packed, self.nonnegative = packed, nonnegative
        self.start = _pad_to_blocks(-zero_point * weight.sum(1, dtype=torch.int32))
        self.scale = _pad_to_blocks(scale / max_level)
        self.bias = _pad_to_blocks(torch.zeros_like(scale) if bias is None else bias.detach())

    @property
    def multiply(self) -> Any:
        return load_kernel()

    def build_struct(self) -> Int8LinearStruct:
        pointers = (part.data_ptr() for part in (self.packed, self.start, self.scale, self.bias))
        return Int8LinearStruct(
            *pointers, self.in_features, self.out_features, self.packed.shape[1], self.nonnegative, self.relu
        )


def pack_blocks(weight: Int8[Tensor, "N K"]) -> Int8[Tensor, "blocks steps WIDE STEP"]:
    """Pack the weights in the order in which the kernel reads them, padded with zeros to whole blocks and steps."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % STEP_INPUTS, 0, -outputs % BLOCK_OUTPUTS))
    return padded.unflatten(1, (-1, STEP_INPUTS)).unflatten(0, (-1, BLOCK_OUTPUTS)).transpose(1, 2).contiguous()


def _pad_to_blocks(each: Shaped[Tensor, " N"]) -> Shaped[Tensor, " M"]:
    """Pad values per output with zeros to whole blocks."""
    return F.pad(each, (0, -len(each) % BLOCK_OUTPUTS)).contiguous()


@lru_cache(1)
def load_kernel() -> Any:
    """The compiled function; None where C kernels are not available."""
    pointer = ctypes.c_void_p
    kinds = (ctypes.POINTER(Int8LinearStruct), pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int)
    return native.load_function(SOURCE, "int8_product", *kinds)
