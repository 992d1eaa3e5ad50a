"""Linear layers and embeddings with weights packed for inference on a CPU by oneDNN, in float32 or int8.

They replace `nn.Linear`, `HeadProjection` and `nn.Embedding`. Packed weights can no longer be trained, moved to another
device or read.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Shaped, UInt8
from torch import Tensor, nn

from saccade.kernels.memory import check_product
from saccade.kernels.weights import FeedForwardWeights, LinearWeights, Unsupported, describe_linear

LAYOUT_ROWS = 32  # batch size given to oneDNN when packing; the result suits all sizes
MIN_ONEDNN_ROWS = 4  # with fewer rows, oneDNN takes longer than with this many
MIN_PACKED_WEIGHTS = 1 << 16  # weights
ZERO_POINT = 128  # the unsigned byte for 0.0
INT8_MAX = 127
MAX_BF16_ROWS = 4  # up to here, Int8Linear multiplies in bfloat16
MIN_TWO_PASS_ELEMENTS = 1 << 18  # from here on, max and min in two passes are faster than max of a copy of |x|
BF16_COLUMN_MULTIPLE = 32  # the bfloat16 kernel ignores columns beyond a multiple of this
ROUNDING_MAGIC = float(3 << 22)  # float32 has a spacing of 1 here, so that adding it rounds to integers


def is_available() -> bool:
    """Whether this torch has oneDNN."""
    return torch.backends.mkldnn.is_available()


@dataclass(frozen=True)
class CpuLayout:
    """Which weights of a module may be packed for inference on a CPU; a module declares it as attribute `cpu_layout`.

    A user's module without a declaration is left as it is, because it may use its weights in any way.
    """

    linears: tuple[str, ...] = ()  # paths of its `nn.Linear` and `HeadProjection`
    embeddings: tuple[str, ...] = ()  # paths of its `nn.Embedding`
    exact: bool = False  # outputs are logits, whose order must not change: no bfloat16
    stepwise: bool = False  # also called with single rows, in decoding steps
    is_relu: bool = False  # `up` and `down` with only a ReLU between them, which `up` can apply


def get_layout(module: nn.Module) -> CpuLayout:
    """The layout that a module declares; empty without a declaration."""
    declared: CpuLayout = getattr(module, "cpu_layout", CpuLayout())
    return declared


class PackedLinear(nn.Module):
    """A linear layer with float32 weights packed by oneDNN, followed by a ReLU if `relu`.

    With `single_row`, a plain copy of the weights, contiguous along the longer side, is kept for single rows: reading
    it is nearly as fast as memory allows. Small layers use only the plain copy, because oneDNN has more overhead.
    """

    def __init__(
        self,
        weight: Float[Tensor, "N K"],
        bias: Float[Tensor, " N"] | None,
        *,
        single_row: bool = False,
        relu: bool = False,
    ) -> None:
        super().__init__()
        weight, small = weight.detach(), weight.numel() < MIN_PACKED_WEIGHTS
        self.out_features = weight.shape[0]
        self.packed = None if small else torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), LAYOUT_ROWS)
        self.transposed = weight.shape[0] >= weight.shape[1]
        self.plain = (weight.T.contiguous() if self.transposed else weight) if single_row or small else None
        self.bias, self.relu = None if bias is None else bias.detach(), relu
        self.post_op = "relu" if relu else "none"

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        rows = x.numel() // x.shape[-1]
        check_product(rows, self.out_features)
        if self.plain is not None and (rows == 1 or self.packed is None):
            return self._multiply_plain(x)
        if rows < MIN_ONEDNN_ROWS:
            padded = F.pad(x.reshape(rows, -1), (0, 0, 0, MIN_ONEDNN_ROWS - rows))
            return self._multiply_packed(padded)[:rows].view(*x.shape[:-1], -1)
        return self._multiply_packed(x)

    def _multiply_packed(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, self.post_op, [], "")
        return y

    def _multiply_plain(self, x: Tensor) -> Tensor:
        assert self.plain is not None
        if self.transposed:
            flat = x.reshape(-1, x.shape[-1])
            y = flat @ self.plain if self.bias is None else torch.addmm(self.bias, flat, self.plain)
            y = y.view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.plain, self.bias)
        return y.relu_() if self.relu else y


class Int8Linear(nn.Module):
    """A linear layer with int8 weights and a scale per output, followed by a ReLU if `relu`.

    Rows of x are quantized too, with a scale per row (dynamic quantization). For a few rows this costs more than it
    saves: they are multiplied in bfloat16, unless the result must be `exact`, as for logits. If x is `nonnegative`,
    as after a ReLU, it uses the whole range of unsigned bytes.
    """

    def __init__(
        self,
        weight: Int8[Tensor, "N K"],
        scale: Float[Tensor, " N"],
        bias: Float[Tensor, " N"] | None,
        *,
        exact: bool = False,
        relu: bool = False,
        nonnegative: bool = False,
    ) -> None:
        super().__init__()
        has_bf16_kernel = weight.shape[1] % BF16_COLUMN_MULTIPLE == 0
        # A copy is aligned in memory, as the kernel requires: tensors read from a file may not be.
        aligned = weight.clone(memory_format=torch.contiguous_format)
        self.bf16_weights = (aligned, scale.to(torch.bfloat16)) if has_bf16_kernel and not exact else None
        safe_weight, safe_scale = _avoid_overflow(weight, scale)
        self.packed = torch.ops.onednn.qlinear_prepack(safe_weight.contiguous(), [LAYOUT_ROWS, weight.shape[1]])
        self.quantizer = ActivationQuantizer(weight.shape[1], nonnegative=nonnegative)
        self.scale, self.zeros = safe_scale / self.quantizer.max_level, torch.zeros(len(scale), dtype=torch.int32)
        self.bias, self.relu = None if bias is None else bias.detach(), relu
        self.product = torch.ops.onednn.qlinear_pointwise.default

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        check_product(x.numel() // x.shape[-1], len(self.scale))
        if self.bf16_weights is not None and x.numel() <= MAX_BF16_ROWS * x.shape[-1]:
            rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
            y = torch._weight_int8pack_mm(rows, *self.bf16_weights).float().view(*x.shape[:-1], -1)
            y = y if self.bias is None else y.add_(self.bias)
        else:
            row_max = self.quantizer.compute_row_max(x)
            y = self.product(
                self.quantizer.quantize(x, row_max), 1.0, self.quantizer.zero_point, self.packed, self.scale,
                self.zeros, None,
                1.0, 0, torch.float32, "none", [], "",
            )  # fmt: skip
            y = y.mul_(row_max) if self.bias is None else _scale_and_add(y, row_max, self.bias)
        return y.relu_() if self.relu else y


class ActivationQuantizer:
    """Quantizes rows to unsigned bytes: 127 levels on both sides of 128, or 255 levels above 0 if `nonnegative`."""

    def __init__(self, width: int, *, nonnegative: bool) -> None:
        self.nonnegative = nonnegative
        self.max_level, self.zero_point = (255, 0) if nonnegative else (INT8_MAX, ZERO_POINT)
        # As long as a row, because addcmul with broadcast scalars is not vectorized.
        self._steps, self._shift = (
            torch.tensor(float(self.max_level)),
            torch.full((width,), ROUNDING_MAGIC + self.zero_point),
        )

    def compute_row_max(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... 1"]:
        """The row_max absolute value of each row."""
        if self.nonnegative:
            return x.amax(-1, keepdim=True)
        if x.numel() < MIN_TWO_PASS_ELEMENTS:
            return x.abs().amax(-1, keepdim=True)
        return torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())

    def quantize(self, x: Float[Tensor, "... K"], row_max: Float[Tensor, "... 1"]) -> UInt8[Tensor, "... K"]:
        """Quantize each row. Rows of zeros give arbitrary bytes, but their products are multiplied by 0."""
        # The last byte of a float32 near ROUNDING_MAGIC is the rounded integer.
        return torch.addcmul(self._shift, x, self._steps / row_max).view(torch.int32).to(torch.uint8)


def _scale_and_add(
    y: Float[Tensor, "... N"], scale: Float[Tensor, "... 1"], bias: Float[Tensor, " N"]
) -> Float[Tensor, "... N"]:
    """y * scale + bias in one operation, in place unless gradients are enabled."""
    return torch.addcmul(bias, y, scale, out=None if torch.is_grad_enabled() else y)


class PreparedHeadProjection(nn.Module):
    """A `HeadProjection` with one of the linear layers above, whose outputs are in the order of `reorder_by_part`."""

    def __init__(self, product: nn.Module, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.product, self.shape = product, shape

    def forward(self, x: Float[Tensor, "B N D"]) -> tuple[Float[Tensor, "B N H E"], ...]:
        heads, parts, head_dim = self.shape
        return self.product(x).view(*x.shape[:-1], parts, heads, head_dim).unbind(-3)

    def describe(self) -> LinearWeights:
        return describe_linear(self.product)


class PreparedFeedForward(nn.Sequential):
    """A `FeedForward` of two packed linear layers, of which the first applies the ReLU."""

    def describe(self) -> FeedForwardWeights:
        up, down = map(describe_linear, self)
        return FeedForwardWeights(up, None, down, "relu")


def reorder_by_part(weight: Shaped[Tensor, "N *K"], shape: tuple[int, int, int]) -> Shaped[Tensor, "N *K"]:
    """Reorder the outputs of a `HeadProjection` from (heads, parts, head_dim) to (parts, heads, head_dim)."""
    return weight.unflatten(0, shape).transpose(0, 1).flatten(0, 2)


class Int8Embedding(nn.Module):
    """An `nn.Embedding` with int8 weights and a scale per row."""

    def __init__(self, weight: Int8[Tensor, "V D"], scale: Float[Tensor, " V"]) -> None:
        super().__init__()
        self.weight, self.scale = weight, scale[:, None].contiguous()

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        flat = ids.flatten()
        rows = self.weight.index_select(0, flat) * self.scale.index_select(0, flat)
        return rows.view(*ids.shape, -1)


def describe_embedding(part: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The embedding table, and its scales where it is int8."""
    if isinstance(part, Int8Embedding):
        return part.weight, part.scale
    if isinstance(part, nn.Embedding):
        return part.weight, None
    raise Unsupported(f"its token embedding is a {type(part).__name__}, not an nn.Embedding")


class NoDropout(nn.Dropout):
    """An identity that is an nn.Dropout, without the overhead of its forward pass."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x


def quantize_weight(weight: Float[Tensor, "N K"]) -> tuple[Int8[Tensor, "N K"], Float[Tensor, " N"]]:
    """Quantize each row to integers from -127 to 127, with a scale that is exact in bfloat16."""
    scale = (weight.abs().amax(1) / INT8_MAX).to(torch.bfloat16).float()
    safe = torch.where(scale > 0, scale, 1.0)
    return (weight / safe[:, None]).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def _avoid_overflow(
    weight: Int8[Tensor, "N K"], scale: Float[Tensor, " N"]
) -> tuple[Int8[Tensor, "N K"], Float[Tensor, " N"]]:
    """Halve the weights on processors without VNNI: they add pairs of products in 16 bits, which would overflow."""
    if torch.cpu._is_vnni_supported():
        return weight, scale
    return (weight.float() / 2).round().to(torch.int8), scale * 2
