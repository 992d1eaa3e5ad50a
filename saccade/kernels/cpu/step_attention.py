"""Attention of a few queries on a CPU, as in decoding: SDPA calls a matrix product for each row and head, which then
takes longer than the work itself. Where C can be compiled, one call does it all."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.kernels.cpu import native

SOURCE = Path(__file__).with_suffix(".c")
FEW_KEYS = 16  # for so many, sums over all rows take less time than two small products for each row and head
WIDEST = 128  # features of a head that the kernel has registers for


def covers(query: Float[Tensor, "B Q H E"]) -> bool:
    """Whether these are faster here: without gradients, which would keep every product."""
    return query.device.type == "cpu" and not torch.is_grad_enabled()


def one_query(
    query: Float[Tensor, "B 1 H E"], key: Float[Tensor, "B K H E"], value: Float[Tensor, "B K H E"], *, scale: float
) -> Float[Tensor, "B 1 H E"]:
    """One query in each row to all keys of that row. Fastest where one position of all rows lies in one piece."""
    if key.shape[1] > FEW_KEYS or is_fused(query, key, value):
        return few_queries(query, key, value, scale=scale, keep=None)
    keys, values = key.transpose(0, 1), value.transpose(0, 1)
    weights = (query.squeeze(1) * scale * keys).sum(-1).softmax(0)
    return (weights[..., None] * values).sum(0)[:, None]


def few_queries(
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "B K H E"],
    value: Float[Tensor, "B K H E"],
    *,
    scale: float,
    keep: Bool[Tensor, "B K"] | None,
) -> Float[Tensor, "B Q H E"]:
    """Some queries to the same keys. Fastest where the keys of one head lie in one piece, or, where nothing can be
    compiled, those of one feature."""
    if is_fused(query, key, value):
        return _fused(query, key, value, scale=scale, keep=keep)
    rows, count, heads, head_dim = query.shape
    queries = (query * scale).transpose(1, 2).reshape(rows * heads, count, head_dim)
    keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (key, value))
    scores = torch.bmm(queries, keys.transpose(1, 2))
    weights = scores.softmax(-1) if keep is None else _masked_softmax(scores, keep.repeat_interleave(heads, 0)[:, None])
    return torch.bmm(weights, values).unflatten(0, (rows, heads)).transpose(1, 2)


def _masked_softmax(scores: Float[Tensor, "R Q K"], keep: Bool[Tensor, "R 1 K"]) -> Float[Tensor, "R Q K"]:
    """Softmax over the keys to keep; a row that keeps none gets zeros, never NaN."""
    nothing = ~keep.any(-1, keepdim=True)
    weights = scores.masked_fill(~keep, -torch.inf).masked_fill(nothing, 0.0)
    return weights.softmax(-1).masked_fill(nothing, 0.0)


# ---- in C


class Part(ctypes.Structure):
    """A tensor whose features lie in one piece, as in the source."""

    _fields_ = [("numbers", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("row", "position", "head"))]


class Attention(ctypes.Structure):
    """What is asked, as in the source."""

    _fields_ = [
        *((name, Part) for name in ("query", "key", "value")),
        ("keep", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "memories", "heads", "keys", "features")),
        ("scale", ctypes.c_float),
    ]


def is_fused(*parts: Float[Tensor, "_ _ _ E"]) -> bool:
    """Whether the kernel takes these: features in one piece, and not too many."""
    return kernel() is not None and all(
        part.stride(-1) == 1 and part.dtype == torch.float32 and part.shape[-1] <= WIDEST for part in parts
    )


def _fused(
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "B K H E"],
    value: Float[Tensor, "B K H E"],
    *,
    scale: float,
    keep: Bool[Tensor, "B K"] | None,
) -> Float[Tensor, "B Q H E"]:
    memories, keys, heads, features = key.shape
    queries = query.flatten(0, 1)
    row, head, _ = queries.stride()
    y, room = queries.new_empty(query.shape), queries.new_empty(memories * heads * keys)
    allowed = None if keep is None else keep.contiguous()
    asked = Attention(
        Part(queries.data_ptr(), row, 0, head),
        *(Part(part.data_ptr(), *part.stride()[:3]) for part in (key, value)),
        None if allowed is None else allowed.data_ptr(),
        *(len(queries), memories, heads, keys, features),
        scale,
    )
    attend: Any = kernel()
    attend(asked, y.data_ptr(), room.data_ptr(), torch.get_num_threads())
    return y


@lru_cache(1)
def kernel() -> Any:
    """The compiled function; None where there is none."""
    kinds = (ctypes.POINTER(Attention), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    return native.function(SOURCE, "attend_once", *kinds)
