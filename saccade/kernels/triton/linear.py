"""Products of a few rows with all of a layer's weights, and everything small around them, in one kernel each.

Imported on CUDA only; `step.py` says what they are for. The reference of `linear` is `_by_library`.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
import triton
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.activations import ACTIVATIONS
from saccade.kernels.triton import decode as kernels
from saccade.kernels.triton import rows as row_kernels
from saccade.kernels.weights import LinearWeights, NormWeights

LONGEST_ROW = 8192  # columns that one program normalises at once
NO_NORM = NormWeights()
FEW = 16  # rows: above it the library's products are faster, though what stands around them takes kernels of its own


@dataclass(frozen=True)
class Rows:
    """States whose normalisation, if any, is left to whoever reads them."""

    values: Float[Tensor, "R D"]
    stats: Float[Tensor, "R parts 2"]  # mean and squared deviations of each part of a row
    norm: NormWeights = NO_NORM

    @property
    def part(self) -> int:
        """Columns of a part; the last one may have fewer."""
        return triton.next_power_of_2(-(-self.values.shape[1] // self.stats.shape[1]))


def linear(
    x: Rows,
    product: LinearWeights,
    *,
    gate: LinearWeights | None = None,
    activation: str = "none",
    residual: Rows | None = None,
    counters: Int[Tensor, " c"],
) -> Rows:
    """residual + activation(norm(x) W^T + b), times the gate where there is one."""
    weight, bias = product.matrix, product.vector
    (rows, k), n = x.values.shape, weight.shape[0]
    if rows > FEW:
        return _by_library(x, product, gate=gate, activation=activation, residual=residual)
    norm, residual_norm = NormArguments.of(x.norm), NormArguments.of(NO_NORM if residual is None else residual.norm)
    out = x.values.new_empty(rows, n)
    settings = dict(
        NORM=norm.kind, RESIDUAL=kernels.NO_RESIDUAL if residual is None else residual_norm.kind,
        ACTIVATION=kernels.ACTIVATIONS[activation], BIAS=bias is not None, GATED=gate is not None, **overlap(weight),
    )  # fmt: skip
    absent = weight  # a pointer that is never followed
    parts = [weight, bias, *((None, None) if gate is None else (gate.matrix, gate.vector))]
    pointers = [absent if part is None else part for part in parts]
    given = x if residual is None else residual
    around = (residual_norm.weight, residual_norm.bias, residual_norm.eps)
    if rows == 1:
        block_k = min(triton.next_power_of_2(k), LONGEST_ROW if norm.kind else 4096)
        block_n = max(1, min(8 if n >= 16 * processors(weight.device) else 4, 16384 // block_k))
        kernels.one_row[(triton.cdiv(n, block_n),)](
            x.values, norm.weight, norm.bias, norm.eps, *pointers, given.values, *around, out, n, k,
            BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_R=triton.next_power_of_2(n),
            num_warps=8 if block_k * block_n > 8192 else 4, **settings,
        )  # fmt: skip
        return Rows(out, x.stats)
    tile = _tile(n, k, weight, splits=gate is None)
    grid = (triton.cdiv(n, tile.n), triton.cdiv(rows, tile.m), tile.split)
    stats = floats(weight, rows, grid[0], 2)
    partial = floats(weight, grid[0] * grid[1] * tile.split, tile.m, tile.n) if tile.split > 1 else stats
    kernels.several_rows[grid](
        x.values, x.stats, x.stats.shape[1], x.part, norm.weight, norm.bias, norm.eps, *pointers,
        given.values, given.stats, given.stats.shape[1], given.part, *around, out, stats, partial, counters, rows, n, k,
        STATS=residual is not None, SPLIT=tile.split, PARTS=_parts(x), RESIDUAL_PARTS=_parts(given),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
        num_warps=4, num_stages=4, **settings,
    )  # fmt: skip
    return Rows(out, stats)


def _by_library(
    x: Rows, product: LinearWeights, *, gate: LinearWeights | None, activation: str, residual: Rows | None
) -> Rows:
    """The same for many rows; whoever reads the result finds out its mean and deviations by itself."""
    given = normalised(x)
    out = F.linear(given, product.matrix, product.vector)
    if activation != "none":
        out = ACTIVATIONS[activation](out)
    if gate is not None:
        out = out * F.linear(given, gate.matrix, gate.vector)
    if residual is not None:
        out += normalised(residual)
    return Rows(out, x.stats)


@dataclass(frozen=True)
class _Tile:
    m: int
    n: int
    k: int
    split: int


def _tile(n: int, k: int, weight: Tensor, *, splits: bool) -> _Tile:
    """Blocks large enough for the tensor cores, and enough of them for all processors."""
    enough = 0.7 * processors(weight.device)
    half = weight.element_size() == 2
    block_n = 64 if half and triton.cdiv(n, 64) >= enough else 32
    block_k = 64 if half else 32
    tiles, split = triton.cdiv(n, block_n), 1
    while splits and tiles * split < enough and split < 8 and k >= split * 4 * block_k:
        split *= 2
    return _Tile(FEW, block_n, block_k, split)


def normalised(x: Rows) -> Float[Tensor, "R D"]:
    """The states with the normalisation that was due."""
    norm, (rows, dim) = NormArguments.of(x.norm), x.values.shape
    if not norm.kind:
        return x.values
    out = torch.empty_like(x.values)
    row_kernels.normalise[(rows,)](
        x.values, norm.weight, norm.bias, norm.eps, out, dim, NORM=norm.kind, BLOCK=triton.next_power_of_2(dim),
        num_warps=4, **overlap(out),
    )  # fmt: skip
    return out


@dataclass(frozen=True)
class NormArguments:
    """A norm as the kernels take it; RMSNorm has no bias, and its pointer is never followed."""

    kind: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @classmethod
    def of(cls, norm: NormWeights) -> "NormArguments":
        bias = norm.weight if norm.bias is None else norm.bias
        return cls(kernels.NORMS[norm.kind], norm.weight, bias, norm.epsilon)


def _parts(x: Rows) -> int:
    return triton.next_power_of_2(x.stats.shape[1]) if x.norm.kind != "none" else 1


def floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


@lru_cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@lru_cache
def _overlaps(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def overlap(like: Tensor) -> dict[str, bool]:
    """Kernels that start while the one before still runs, from Hopper on."""
    overlaps = _overlaps(like.device)
    return {"OVERLAP": overlaps, "launch_pdl": overlaps}
