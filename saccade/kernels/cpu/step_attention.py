"""Attention of a few queries on a CPU, as in decoding, where SDPA's matrix product per row and head has too much
overhead. Where C kernels are available, one call computes everything."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.kernels.cpu import native

SOURCE = Path(__file__).with_suffix(".c")
MAX_ELEMENTWISE_KEYS = 16  # up to here, elementwise products and sums are faster than small matrix products
MAX_HEAD_DIM = 128  # limited by the registers of the C kernel


def supports(query: Float[Tensor, "B Q H E"]) -> bool:
    """Whether to use these functions: on a CPU without gradients."""
    return query.device.type == "cpu" and not torch.is_grad_enabled()


def attend_one_query(
    query: Float[Tensor, "B 1 H E"], key: Float[Tensor, "B K H E"], value: Float[Tensor, "B K H E"], *, scale: float
) -> Float[Tensor, "B 1 H E"]:
    """Attention of one query per row to all keys of its row; fastest if positions are outermost in memory."""
    if key.shape[1] > MAX_ELEMENTWISE_KEYS or can_use_kernel(query, key, value):
        return attend_few_queries(query, key, value, scale=scale, keep=None)
    keys, values = key.transpose(0, 1), value.transpose(0, 1)
    weights = (query.squeeze(1) * scale * keys).sum(-1).softmax(0)
    return (weights[..., None] * values).sum(0)[:, None]


def attend_few_queries(
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "B K H E"],
    value: Float[Tensor, "B K H E"],
    *,
    scale: float,
    keep: Bool[Tensor, "B K"] | None,
) -> Float[Tensor, "B Q H E"]:
    """Attention of a few queries to the same keys; fastest for head-major keys, or feature-major ones without C."""
    if can_use_kernel(query, key, value):
        return _attend_in_c(query, key, value, scale=scale, keep=keep)
    rows, count, heads, head_dim = query.shape
    queries = (query * scale).transpose(1, 2).reshape(rows * heads, count, head_dim)
    keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (key, value))
    scores = torch.bmm(queries, keys.transpose(1, 2))
    weights = scores.softmax(-1) if keep is None else _masked_softmax(scores, keep.repeat_interleave(heads, 0)[:, None])
    return torch.bmm(weights, values).unflatten(0, (rows, heads)).transpose(1, 2)


def _masked_softmax(scores: Float[Tensor, "R Q K"], keep: Bool[Tensor, "R 1 K"]) -> Float[Tensor, "R Q K"]:
    """Softmax over the keys to keep; a row that keeps none gets zeros, never NaN."""
    empty = ~keep.any(-1, keepdim=True)
    scores = scores.masked_fill(~keep, -torch.inf).masked_fill(empty, 0.0)
    return scores.softmax(-1).masked_fill(empty, 0.0)


# ---- in C


class TensorView(ctypes.Structure):
    """A tensor with contiguous features; the structure of the same name in C."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row_stride", "position_stride", "head_stride")),
    ]


class AttentionArgs(ctypes.Structure):
    """The structure of the same name in C."""

    _fields_ = [
        *((name, TensorView) for name in ("query", "key", "value")),
        ("keep", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "memory_rows", "heads", "keys", "head_dim")),
        ("scale", ctypes.c_float),
    ]


def can_use_kernel(*parts: Float[Tensor, "_ _ _ E"]) -> bool:
    """Whether the C kernel supports these tensors: float32, contiguous features, not too many of them, and a row."""
    return load_kernel() is not None and all(
        part.stride(-1) == 1 and part.dtype == torch.float32 and part.shape[-1] <= MAX_HEAD_DIM and part.shape[0] > 0
        for part in parts
    )


def _attend_in_c(
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "B K H E"],
    value: Float[Tensor, "B K H E"],
    *,
    scale: float,
    keep: Bool[Tensor, "B K"] | None,
) -> Float[Tensor, "B Q H E"]:
    memory_rows, keys, heads, head_dim = key.shape
    queries = query.flatten(0, 1)
    row, head, _ = queries.stride()
    y, scratch = queries.new_empty(query.shape), queries.new_empty(memory_rows * heads * keys)
    allowed = None if keep is None else keep.contiguous()
    arguments = AttentionArgs(
        TensorView(queries.data_ptr(), row, 0, head),
        *(TensorView(part.data_ptr(), *part.stride()[:3]) for part in (key, value)),
        None if allowed is None else allowed.data_ptr(),
        *(len(queries), memory_rows, heads, keys, head_dim),
        scale,
    )
    attend: Any = load_kernel()
    attend(arguments, y.data_ptr(), scratch.data_ptr(), torch.get_num_threads())
    return y


@lru_cache(1)
def load_kernel() -> Any:
    """The compiled function; None where C kernels are not available."""
    kinds = (ctypes.POINTER(AttentionArgs), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    return native.load_function(SOURCE, "attend_once", *kinds)
