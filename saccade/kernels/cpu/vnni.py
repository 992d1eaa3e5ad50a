"""Int8 products in C, where the processor and a compiler allow it.

One call makes bytes of the rows, multiplies them, and scales, adds and cuts what comes out: oneDNN's product leaves all
of that to others, and takes longer to begin than a small product takes.
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
from saccade.kernels.cpu.native import NativeProduct
from saccade.kernels.cpu.prepared import LEVELS, ZERO, Int8Linear

SOURCE = Path(__file__).with_suffix(".c")
WIDE, STEP = 32, 4  # outputs of a block and inputs of a step, as in the source


def int8_linear(
    weight: Int8[Tensor, "N K"],
    scale: Float[Tensor, " N"],
    bias: Float[Tensor, " N"] | None,
    *,
    exact: bool = False,
    relu: bool = False,
    positive: bool = False,
) -> nn.Module:
    """The faster of the two int8 products that this machine has; the arguments are those of `Int8Linear`."""
    if kernel() is None:
        return Int8Linear(weight, scale, bias, exact=exact, relu=relu, positive=positive)
    return VnniLinear(weight, scale, bias, relu=relu, positive=positive)


class Product(ctypes.Structure):
    """What stays the same from call to call, as in the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "start", "scale", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "steps")),
        *((name, ctypes.c_int) for name in ("positive", "relu")),
    ]


class VnniLinear(NativeProduct):
    """What `Int8Linear` computes; a few rows become bytes too, so that a row gives the same in any company."""

    def __init__(
        self,
        weight: Int8[Tensor, "N K"],
        scale: Float[Tensor, " N"],
        bias: Float[Tensor, " N"] | None,
        *,
        relu: bool = False,
        positive: bool = False,
    ) -> None:
        (outputs, inputs), packed = weight.shape, in_blocks(weight)
        # The bytes of each row and its largest number.
        scratch = packed.shape[1] + 1
        super().__init__(inputs=inputs, outputs=outputs, relu=relu, scratch=scratch)
        levels, zero = (2 * LEVELS + 1, 0) if positive else (LEVELS, ZERO)
        self.packed, self.positive = packed, positive
        self.start = _whole(-zero * weight.sum(1, dtype=torch.int32))
        self.scale = _whole(scale / levels)
        self.bias = _whole(torch.zeros_like(scale) if bias is None else bias.detach())

    @property
    def multiply(self) -> Any:
        return kernel()

    def make_structure(self) -> Product:
        pointers = (part.data_ptr() for part in (self.packed, self.start, self.scale, self.bias))
        return Product(*pointers, self.inputs, self.outputs, self.packed.shape[1], self.positive, self.relu)


def in_blocks(weight: Int8[Tensor, "N K"]) -> Int8[Tensor, "blocks steps WIDE STEP"]:
    """The weights in the order in which the product reads them, with zeros up to whole blocks and steps."""
    outputs, inputs = weight.shape
    whole = F.pad(weight, (0, -inputs % STEP, 0, -outputs % WIDE))
    return whole.unflatten(1, (-1, STEP)).unflatten(0, (-1, WIDE)).transpose(1, 2).contiguous()


def _whole(each: Shaped[Tensor, " N"]) -> Shaped[Tensor, " M"]:
    """What there is for each output, with zeros up to whole blocks."""
    return F.pad(each, (0, -len(each) % WIDE)).contiguous()


@lru_cache(1)
def kernel() -> Any:
    """The compiled function; None where there is none."""
    pointer = ctypes.c_void_p
    kinds = (ctypes.POINTER(Product), pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int)
    return native.function(SOURCE, "int8_product", *kinds)
