"""Linear layers of a decoding step as one Triton kernel each, with fused norm, activation, gate and residual.

Import on CUDA only; `step.py` uses them. `_linear_reference` is the reference of `linear`.
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

MAX_NORM_WIDTH = 8192  # features that one program can normalize
NO_NORM = NormWeights()
MAX_KERNEL_ROWS = 16  # with more rows, cuBLAS and separate kernels are faster


@dataclass(frozen=True)
class DeferredNorm:
    """Rows that the next kernel normalizes with `norm` while reading them."""

    values: Float[Tensor, "R D"]
    stats: Float[Tensor, "R parts 2"]  # mean and squared deviations of each part of a row
    norm: NormWeights = NO_NORM

    @property
    def part_width(self) -> int:
        """Columns of each part; the last part may have fewer."""
        return triton.next_power_of_2(-(-self.values.shape[1] // self.stats.shape[1]))


def linear(
    x: DeferredNorm,
    product: LinearWeights,
    *,
    gate: LinearWeights | None = None,
    activation: str = "none",
    residual: DeferredNorm | None = None,
    counters: Int[Tensor, " c"],
) -> DeferredNorm:
    """residual + activation(norm(x) W^T + b) * gate, where there is a gate."""
    weight, bias = product.matrix, product.vector
    (rows, k), n = x.values.shape, weight.shape[0]
    if rows > MAX_KERNEL_ROWS:
        return _linear_reference(x, product, gate=gate, activation=activation, residual=residual)
    norm, residual_norm = (
        NormArguments.from_weights(x.norm),
        NormArguments.from_weights(NO_NORM if residual is None else residual.norm),
    )
    out = x.values.new_empty(rows, n)
    settings = dict(
        NORM=norm.kind, RESIDUAL=kernels.NO_RESIDUAL if residual is None else residual_norm.kind,
        ACTIVATION=kernels.ACTIVATIONS[activation], BIAS=bias is not None, GATED=gate is not None,
        **get_overlap_options(weight),
    )  # fmt: skip
    absent = weight  # a valid pointer that is never read
    parts = [weight, bias, *((None, None) if gate is None else (gate.matrix, gate.vector))]
    pointers = [absent if part is None else part for part in parts]
    residual_rows = x if residual is None else residual
    residual_norm_arguments = (residual_norm.weight, residual_norm.bias, residual_norm.eps)
    if rows == 1:
        block_k = min(triton.next_power_of_2(k), MAX_NORM_WIDTH if norm.kind else 4096)
        block_n = max(1, min(8 if n >= 16 * count_multiprocessors(weight.device) else 4, 16384 // block_k))
        kernels.linear_one_row[(triton.cdiv(n, block_n),)](
            x.values, norm.weight, norm.bias, norm.eps, *pointers, residual_rows.values, *residual_norm_arguments,
            out, n, k,
            BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_R=triton.next_power_of_2(n),
            num_warps=8 if block_k * block_n > 8192 else 4, **settings,
        )  # fmt: skip
        return DeferredNorm(out, x.stats)
    tile = _choose_tile(n, k, weight, can_split=gate is None)
    grid = (triton.cdiv(n, tile.n), triton.cdiv(rows, tile.m), tile.split)
    stats = empty_floats(weight, rows, grid[0], 2)
    partial = empty_floats(weight, grid[0] * grid[1] * tile.split, tile.m, tile.n) if tile.split > 1 else stats
    kernels.linear_several_rows[grid](
        x.values, x.stats, x.stats.shape[1], x.part_width, norm.weight, norm.bias, norm.eps, *pointers,
        residual_rows.values, residual_rows.stats, residual_rows.stats.shape[1], residual_rows.part_width,
        *residual_norm_arguments, out, stats, partial, counters, rows, n, k,
        STATS=residual is not None, SPLIT=tile.split, PARTS=_count_parts(x), RESIDUAL_PARTS=_count_parts(residual_rows),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
        num_warps=4, num_stages=4, **settings,
    )  # fmt: skip
    return DeferredNorm(out, stats)


def _linear_reference(
    x: DeferredNorm,
    product: LinearWeights,
    *,
    gate: LinearWeights | None,
    activation: str,
    residual: DeferredNorm | None,
) -> DeferredNorm:
    """The reference, used for many rows; its result has no statistics, so the reader must compute them."""
    normalized = normalize_rows(x)
    out = F.linear(normalized, product.matrix, product.vector)
    if activation != "none":
        out = ACTIVATIONS[activation](out)
    if gate is not None:
        out = out * F.linear(normalized, gate.matrix, gate.vector)
    if residual is not None:
        out += normalize_rows(residual)
    return DeferredNorm(out, x.stats)


@dataclass(frozen=True)
class _Tile:
    m: int
    n: int
    k: int
    split: int


def _choose_tile(n: int, k: int, weight: Tensor, *, can_split: bool) -> _Tile:
    """Block sizes large enough for tensor cores, and enough blocks to occupy all multiprocessors."""
    enough = 0.7 * count_multiprocessors(weight.device)
    half = weight.element_size() == 2
    block_n = 64 if half and triton.cdiv(n, 64) >= enough else 32
    block_k = 64 if half else 32
    tiles, split = triton.cdiv(n, block_n), 1
    while can_split and tiles * split < enough and split < 8 and k >= split * 4 * block_k:
        split *= 2
    return _Tile(MAX_KERNEL_ROWS, block_n, block_k, split)


def normalize_rows(x: DeferredNorm) -> Float[Tensor, "R D"]:
    """Apply the deferred norm."""
    norm, (rows, dim) = NormArguments.from_weights(x.norm), x.values.shape
    if not norm.kind:
        return x.values
    out = torch.empty_like(x.values)
    row_kernels.normalize_row[(rows,)](
        x.values, norm.weight, norm.bias, norm.eps, out, dim, NORM=norm.kind, BLOCK=triton.next_power_of_2(dim),
        num_warps=4, **get_overlap_options(out),
    )  # fmt: skip
    return out


@dataclass(frozen=True)
class NormArguments:
    """A norm as kernel arguments; the bias pointer of an RMSNorm is valid but never read."""

    kind: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @classmethod
    def from_weights(cls, norm: NormWeights) -> "NormArguments":
        bias = norm.weight if norm.bias is None else norm.bias
        return cls(kernels.NORMS[norm.kind], norm.weight, bias, norm.epsilon)


def _count_parts(x: DeferredNorm) -> int:
    return triton.next_power_of_2(x.stats.shape[1]) if x.norm.kind != "none" else 1


def empty_floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


@lru_cache
def count_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@lru_cache
def _supports_overlap(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def get_overlap_options(like: Tensor) -> dict[str, bool]:
    """Launch options for overlap with the previous kernel (programmatic dependent launch, Hopper or later)."""
    overlaps = _supports_overlap(like.device)
    return {"OVERLAP": overlaps, "launch_pdl": overlaps}
