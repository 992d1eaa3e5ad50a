"""Matrix products whose weights are laid out once for inference on a CPU, by oneDNN, in float32 or in int8.

They stand in the place of `nn.Linear`, `HeadProjection` and `nn.Embedding` and are called as these are. Their weights
can no longer be trained, moved or read.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor, nn

ROWS = 32  # that the layout is made for; it serves all numbers of rows alike
LEAST = 4  # rows: with fewer, the products of oneDNN take longer than with so many
SMALL = 1 << 16  # weights
ZERO = 128  # the byte that stands for 0.0
LEVELS = 127  # on each side of it
FEW = 4  # rows
MANY = 1 << 18  # numbers; of so many, two looks take less time than a copy of their absolute values
STEP = 32  # columns: the product in bfloat16 takes so many at once and looks at no rest
_LEVELS, _MAGIC = torch.tensor(float(LEVELS)), torch.tensor(float(3 << 22) + ZERO)


def is_available() -> bool:
    """Whether this torch has oneDNN."""
    return torch.backends.mkldnn.is_available()


class PackedLinear(nn.Module):
    """x W^T + b with weights as they are.

    A `single` row is a product of its own kind: it reads weights that are laid out plainly, by the longer side, nearly
    as fast as memory gives them. Small products are left to it too, for a call of oneDNN takes longer.
    """

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, *, single: bool = False) -> None:
        super().__init__()
        weight, small = weight.detach(), weight.numel() < SMALL
        self.packed = None if small else torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self.turned = weight.shape[0] >= weight.shape[1]
        self.plain = (weight.T.contiguous() if self.turned else weight) if single or small else None
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        rows = x.numel() // x.shape[-1]
        if self.plain is not None and (rows == 1 or self.packed is None):
            return self._plainly(x)
        if rows < LEAST:
            padded = F.pad(x.reshape(rows, -1), (0, 0, 0, LEAST - rows))
            return self._packed(padded)[:rows].view(*x.shape[:-1], -1)
        return self._packed(x)

    def _packed(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")
        return y

    def _plainly(self, x: Tensor) -> Tensor:
        assert self.plain is not None
        if not self.turned:
            return F.linear(x, self.plain, self.bias)
        flat = x.reshape(-1, x.shape[-1])
        y = flat @ self.plain if self.bias is None else torch.addmm(self.bias, flat, self.plain)
        return y.view(*x.shape[:-1], -1)


class Int8Linear(nn.Module):
    """x W^T + b with weights in int8, which have a scale for each output.

    Many rows of x become bytes too, with a scale for each row. For a few rows that takes longer than it saves: they
    are multiplied in bfloat16, unless the product is `exact`, as logits must be, whose order counts.
    """

    def __init__(
        self,
        weight: Int8[Tensor, "N K"],
        scale: Float[Tensor, " N"],
        bias: Float[Tensor, " N"] | None,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__()
        whole_steps = weight.shape[1] % STEP == 0
        # A copy begins at a round address, which the product needs: tensors read from a file may begin anywhere.
        own = weight.clone(memory_format=torch.contiguous_format)
        self.few = (own, scale.to(torch.bfloat16)) if whole_steps and not exact else None
        whole, wide = _without_overflow(weight, scale)
        self.packed = torch.ops.onednn.qlinear_prepack(whole.contiguous(), [ROWS, weight.shape[1]])
        self.scale, self.zeros = wide / LEVELS, torch.zeros(len(scale), dtype=torch.int32)
        self.bias = None if bias is None else bias.detach()
        self.product = torch.ops.onednn.qlinear_pointwise.default

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        if self.few is not None and x.numel() <= FEW * x.shape[-1]:
            short = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
            y = torch._weight_int8pack_mm(short, *self.few).float().view(*x.shape[:-1], -1)
        else:
            largest = largest_of(x)
            y = self.product(
                to_bytes(x, largest), 1.0, ZERO, self.packed, self.scale, self.zeros, None, 1.0, 0, torch.float32,
                "none", [], "",
            ).mul_(largest)  # fmt: skip
        return y if self.bias is None else y.add_(self.bias)


def largest_of(x: Float[Tensor, "... K"]) -> Float[Tensor, "... 1"]:
    """The largest absolute value of each row."""
    if x.numel() < MANY:
        return x.abs().amax(-1, keepdim=True)
    return torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())


def to_bytes(x: Float[Tensor, "... K"], largest: Float[Tensor, "... 1"]) -> UInt8[Tensor, "... K"]:
    """Each row in 127 steps on both sides of 128. A row of zeros becomes anything: its product is multiplied by 0."""
    # A float32 of this size has steps of one, so that the sum is rounded, and its last byte is the number.
    return (x * (_LEVELS / largest)).add_(_MAGIC).view(torch.int32).to(torch.uint8)


class PreparedHeads(nn.Module):
    """A `HeadProjection` whose product is one of the above."""

    def __init__(self, product: nn.Module, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.product, self.shape = product, shape

    def forward(self, x: Float[Tensor, "B N D"]) -> tuple[Float[Tensor, "B N H E"], ...]:
        return self.product(x).view(*x.shape[:-1], *self.shape).unbind(-2)


class Int8Table(nn.Module):
    """An `nn.Embedding` with a scale for each row."""

    def __init__(self, weight: Int8[Tensor, "V D"], scale: Float[Tensor, " V"]) -> None:
        super().__init__()
        self.weight, self.scale = weight, scale[:, None].contiguous()

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        return self.weight[ids] * self.scale[ids]


class NoDropout(nn.Dropout):
    """Dropout of nothing, without the calls that nn.Dropout makes to find that out."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x


def quantise(weight: Float[Tensor, "N K"]) -> tuple[Int8[Tensor, "N K"], Float[Tensor, " N"]]:
    """Each row as integers from -127 to 127 and the number that one of them stands for, which bfloat16 can hold."""
    scale = (weight.abs().amax(1) / LEVELS).to(torch.bfloat16).float()
    safe = torch.where(scale > 0, scale, 1.0)
    return (weight / safe[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def _without_overflow(
    weight: Int8[Tensor, "N K"], scale: Float[Tensor, " N"]
) -> tuple[Int8[Tensor, "N K"], Float[Tensor, " N"]]:
    """Processors without VNNI add two products in 16 bits, where two of 255 x 127 have no room: they get 7 bits."""
    if torch.cpu._is_vnni_supported():
        return weight, scale
    return (weight.float() / 2).round().to(torch.int8), scale * 2
