"""Matrix products whose weights are laid out once for inference on a CPU, by oneDNN, in float32 or in int8.

They stand in the place of `nn.Linear`, `HeadProjection` and `nn.Embedding` and are called as these are. Their weights
can no longer be trained, moved or read.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Shaped, UInt8
from torch import Tensor, nn

from saccade.kernels.weights import FeedForwardWeights, LinearWeights, Unsupported, describe_linear

ROWS = 32  # that the layout is made for; it serves all numbers of rows alike
LEAST = 4  # rows: with fewer, the products of oneDNN take longer than with so many
SMALL = 1 << 16  # weights
ZERO = 128  # the byte that stands for 0.0
LEVELS = 127  # on each side of it
FEW = 4  # rows
MANY = 1 << 18  # numbers; of so many, two looks take less time than a copy of their absolute values
STEP = 32  # columns: the product in bfloat16 takes so many at once and looks at no rest
MAGIC = float(3 << 22)  # a float32 of this size has steps of one, so that a sum with it is rounded


def is_available() -> bool:
    """Whether this torch has oneDNN."""
    return torch.backends.mkldnn.is_available()


@dataclass(frozen=True)
class CpuLayout:
    """What of a module inference on a CPU may lay out anew; a module declares it as its attribute `cpu_layout`.

    A user's module that declares none stays as it is: it may do anything with its weights.
    """

    products: tuple[str, ...] = ()  # paths of its `nn.Linear` and `HeadProjection`
    tables: tuple[str, ...] = ()  # paths of its `nn.Embedding`
    exact: bool = False  # products are logits, whose order counts
    stepwise: bool = False  # it is also called for single rows, step by step
    is_relu: bool = False  # `up` and `down` with nothing but a ReLU between them, which `up` can do by itself


def get_layout(module: nn.Module) -> CpuLayout:
    """The layout that a module declares; nothing for one without a declaration."""
    declared: CpuLayout = getattr(module, "cpu_layout", CpuLayout())
    return declared


class PackedLinear(nn.Module):
    """x W^T + b with weights as they are.

    A `single` row is a product of its own kind: it reads weights that are laid out plainly, by the longer side, nearly
    as fast as memory gives them. Small products are left to it too, for a call of oneDNN takes longer. With `relu`
    what is below 0 becomes 0 before it is written.
    """

    def __init__(
        self,
        weight: Float[Tensor, "N K"],
        bias: Float[Tensor, " N"] | None,
        *,
        single: bool = False,
        relu: bool = False,
    ) -> None:
        super().__init__()
        weight, small = weight.detach(), weight.numel() < SMALL
        self.packed = None if small else torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self.turned = weight.shape[0] >= weight.shape[1]
        self.plain = (weight.T.contiguous() if self.turned else weight) if single or small else None
        self.bias, self.relu = None if bias is None else bias.detach(), relu
        self.last = "relu" if relu else "none"

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        rows = x.numel() // x.shape[-1]
        if self.plain is not None and (rows == 1 or self.packed is None):
            return self._plainly(x)
        if rows < LEAST:
            padded = F.pad(x.reshape(rows, -1), (0, 0, 0, LEAST - rows))
            return self._packed(padded)[:rows].view(*x.shape[:-1], -1)
        return self._packed(x)

    def _packed(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, self.last, [], "")
        return y

    def _plainly(self, x: Tensor) -> Tensor:
        assert self.plain is not None
        if self.turned:
            flat = x.reshape(-1, x.shape[-1])
            y = flat @ self.plain if self.bias is None else torch.addmm(self.bias, flat, self.plain)
            y = y.view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.plain, self.bias)
        return y.relu_() if self.relu else y


class Int8Linear(nn.Module):
    """x W^T + b with weights in int8, which have a scale for each output.

    Many rows of x become bytes too, with a scale for each row. For a few rows that takes longer than it saves: they
    are multiplied in bfloat16, unless the product is `exact`, as logits must be, whose order counts. With `relu` what
    is below 0 becomes 0; where x itself is such a result it is `positive`, and all bytes stand for its one side.
    """

    def __init__(
        self,
        weight: Int8[Tensor, "N K"],
        scale: Float[Tensor, " N"],
        bias: Float[Tensor, " N"] | None,
        *,
        exact: bool = False,
        relu: bool = False,
        positive: bool = False,
    ) -> None:
        super().__init__()
        whole_steps = weight.shape[1] % STEP == 0
        # A copy begins at a round address, which the product needs: tensors read from a file may begin anywhere.
        own = weight.clone(memory_format=torch.contiguous_format)
        self.few = (own, scale.to(torch.bfloat16)) if whole_steps and not exact else None
        whole, wide = _without_overflow(weight, scale)
        self.packed = torch.ops.onednn.qlinear_prepack(whole.contiguous(), [ROWS, weight.shape[1]])
        self.rounding = Rounding(weight.shape[1], positive=positive)
        self.scale, self.zeros = wide / self.rounding.levels, torch.zeros(len(scale), dtype=torch.int32)
        self.bias, self.relu = None if bias is None else bias.detach(), relu
        self.product = torch.ops.onednn.qlinear_pointwise.default

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        if self.few is not None and x.numel() <= FEW * x.shape[-1]:
            short = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
            y = torch._weight_int8pack_mm(short, *self.few).float().view(*x.shape[:-1], -1)
            y = y if self.bias is None else y.add_(self.bias)
        else:
            largest = self.rounding.largest_of(x)
            y = self.product(
                self.rounding.to_bytes(x, largest), 1.0, self.rounding.zero, self.packed, self.scale, self.zeros, None,
                1.0, 0, torch.float32, "none", [], "",
            )  # fmt: skip
            y = y.mul_(largest) if self.bias is None else _scaled(y, largest, self.bias)
        return y.relu_() if self.relu else y


class Rounding:
    """How rows of K numbers become bytes: in 127 steps on both sides of 128, or in 255 where all are `positive`."""

    def __init__(self, width: int, *, positive: bool) -> None:
        self.positive = positive
        self.levels, self.zero = (255, 0) if positive else (LEVELS, ZERO)
        # As wide as a row, since a sum with a single number and a number for each row is not vectorised.
        self._steps, self._shift = torch.tensor(float(self.levels)), torch.full((width,), MAGIC + self.zero)

    def largest_of(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... 1"]:
        """The largest absolute value of each row."""
        if self.positive:
            return x.amax(-1, keepdim=True)
        if x.numel() < MANY:
            return x.abs().amax(-1, keepdim=True)
        return torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())

    def to_bytes(self, x: Float[Tensor, "... K"], largest: Float[Tensor, "... 1"]) -> UInt8[Tensor, "... K"]:
        """Each row, rounded. A row of zeros becomes anything: its product is multiplied by 0."""
        # The last byte of such a sum is the number.
        return torch.addcmul(self._shift, x, self._steps / largest).view(torch.int32).to(torch.uint8)


def _scaled(
    y: Float[Tensor, "... N"], scale: Float[Tensor, "... 1"], bias: Float[Tensor, " N"]
) -> Float[Tensor, "... N"]:
    """y * scale + bias in one go, in the place of y where no gradients forbid it."""
    return torch.addcmul(bias, y, scale, out=None if torch.is_grad_enabled() else y)


class PreparedHeads(nn.Module):
    """A `HeadProjection` whose product is one of the above; its outputs stand in the order of `by_part`."""

    def __init__(self, product: nn.Module, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.product, self.shape = product, shape

    def forward(self, x: Float[Tensor, "B N D"]) -> tuple[Float[Tensor, "B N H E"], ...]:
        heads, parts, head_dim = self.shape
        return self.product(x).view(*x.shape[:-1], parts, heads, head_dim).unbind(-3)

    def describe(self) -> LinearWeights:
        return describe_linear(self.product)


class PreparedFeedForward(nn.Sequential):
    """A `FeedForward` of two prepared products, of which the first applies the ReLU by itself."""

    def describe(self) -> FeedForwardWeights:
        up, down = map(describe_linear, self)
        return FeedForwardWeights(up, None, down, "relu")


def by_part(weight: Shaped[Tensor, "N *K"], shape: tuple[int, int, int]) -> Shaped[Tensor, "N *K"]:
    """The outputs of a `HeadProjection` of this shape in another order: first those of one part for all heads."""
    return weight.unflatten(0, shape).transpose(0, 1).flatten(0, 2)


class Int8Table(nn.Module):
    """An `nn.Embedding` with a scale for each row."""

    def __init__(self, weight: Int8[Tensor, "V D"], scale: Float[Tensor, " V"]) -> None:
        super().__init__()
        self.weight, self.scale = weight, scale[:, None].contiguous()

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        flat = ids.flatten()
        rows = self.weight.index_select(0, flat) * self.scale.index_select(0, flat)
        return rows.view(*ids.shape, -1)


def describe_table(part: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The vectors of tokens, and their scales where they are int8."""
    if isinstance(part, Int8Table):
        return part.weight, part.scale
    if isinstance(part, nn.Embedding):
        return part.weight, None
    raise Unsupported(f"its tokens are looked up by a module of another kind ({type(part).__name__})")


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
