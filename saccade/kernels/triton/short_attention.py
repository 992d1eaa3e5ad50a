"""Attention inside short packed sequences, as one Triton kernel for the forward and one for the backward pass.

A program processes one sequence and one head: all queries and keys fit on the chip, so that the weights are never
stored and the backward pass recomputes them. Flash attention works in tiles of 128 x 128, of which a sentence of 30
tokens uses a twentieth; here the tile is as small as the longest sequence allows. Equal to `explicit_attention` on each
sequence.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
@no_type_check
def _locate_head(base, offsets, sequence, head, row_stride, head_stride, tile: tl.constexpr, width: tl.constexpr):
    """Pointers to one head of one sequence (tile, width), the mask of its rows, and its length."""
    begin = tl.load(offsets + sequence)
    length = tl.load(offsets + sequence + 1) - begin
    rows, columns = tl.arange(0, tile), tl.arange(0, width)
    valid = (rows < length)[:, None] & (columns >= 0)[None, :]
    return (
        base + (begin + rows).to(tl.int64)[:, None] * row_stride + head * head_stride + columns[None, :],
        valid,
        length,
    )


@triton.jit
@no_type_check
def _compute_weights(q, k, q_length, k_length, scale, causal, tile: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    rows, columns = tl.arange(0, tile), tl.arange(0, tile)
    allowed = (columns < k_length)[None, :] & (rows < q_length)[:, None]
    allowed = allowed & ((columns[None, :] <= rows[:, None]) | (causal == 0))
    scores = tl.where(allowed, scores, float("-inf"))
    highest = tl.max(scores, 1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)  # a query without keys gets zeros
    weights = tl.exp(scores - highest[:, None])
    total = tl.sum(weights, 1)
    return weights / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["causal"])  # one compilation for both values
@no_type_check
def _forward(  # noqa: PLR0913
    q, k, v, y, q_offsets, k_offsets, scale, causal, q_row_stride, q_head_stride, k_row_stride, k_head_stride,
    v_row_stride, v_head_stride,
    heads: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    q_at, q_valid, q_length = _locate_head(q, q_offsets, sequence, head, q_row_stride, q_head_stride, tile, width)
    if q_length > 0:
        k_at, k_valid, k_length = _locate_head(k, k_offsets, sequence, head, k_row_stride, k_head_stride, tile, width)
        v_at, _, _ = _locate_head(v, k_offsets, sequence, head, v_row_stride, v_head_stride, tile, width)
        y_at, _, _ = _locate_head(y, q_offsets, sequence, head, heads * width, width, tile, width)
        queries, keys = tl.load(q_at, mask=q_valid, other=0.0), tl.load(k_at, mask=k_valid, other=0.0)
        weights = _compute_weights(queries, keys, q_length, k_length, scale, causal, tile)
        values = tl.load(v_at, mask=k_valid, other=0.0)
        out = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        tl.store(y_at, out.to(y.dtype.element_ty), mask=q_valid)


@triton.jit(do_not_specialize=["causal"])
@no_type_check
def _backward(  # noqa: PLR0913
    q, k, v, dy, dq, dk, dv, q_offsets, k_offsets, scale, causal,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride,
    heads: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    q_at, q_valid, q_length = _locate_head(q, q_offsets, sequence, head, q_row_stride, q_head_stride, tile, width)
    k_at, k_valid, k_length = _locate_head(k, k_offsets, sequence, head, k_row_stride, k_head_stride, tile, width)
    if q_length + k_length > 0:
        v_at, _, _ = _locate_head(v, k_offsets, sequence, head, v_row_stride, v_head_stride, tile, width)
        dy_at, _, _ = _locate_head(dy, q_offsets, sequence, head, heads * width, width, tile, width)
        dq_at, _, _ = _locate_head(dq, q_offsets, sequence, head, heads * width, width, tile, width)
        dk_at, _, _ = _locate_head(dk, k_offsets, sequence, head, heads * width, width, tile, width)
        dv_at, _, _ = _locate_head(dv, k_offsets, sequence, head, heads * width, width, tile, width)
        queries, keys = tl.load(q_at, mask=q_valid, other=0.0), tl.load(k_at, mask=k_valid, other=0.0)
        values, dout = tl.load(v_at, mask=k_valid, other=0.0), tl.load(dy_at, mask=q_valid, other=0.0)
        weights = _compute_weights(queries, keys, q_length, k_length, scale, causal, tile)
        dvalues = tl.dot(tl.trans(weights.to(dout.dtype)), dout, input_precision="ieee")
        tl.store(dv_at, dvalues.to(dv.dtype.element_ty), mask=k_valid)
        dweights = tl.dot(dout, tl.trans(values), input_precision="ieee")
        dscores = weights * (dweights - tl.sum(weights * dweights, 1)[:, None]) * scale
        dscores_low = dscores.to(queries.dtype)
        dqueries = tl.dot(dscores_low, keys, input_precision="ieee")
        tl.store(dq_at, dqueries.to(dq.dtype.element_ty), mask=q_valid)
        dkeys = tl.dot(tl.trans(dscores_low), queries, input_precision="ieee")
        tl.store(dk_at, dkeys.to(dk.dtype.element_ty), mask=k_valid)


def _launch(q: Tensor, k: Tensor, v: Tensor, max_length: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """The strides of queries, keys and values, and the constants of the kernel."""
    strides = tuple(part.stride(i) for part in (q, k, v) for i in (0, 1))
    warps = {16: 1, 32: 2, 64: 4}.get(max_length, 8)
    return strides, {"heads": q.shape[1], "tile": max_length, "width": q.shape[2], "num_warps": warps}


@torch.library.custom_op("saccade::short_attention", mutates_args=())
def short_attention(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    max_length: int, causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    """(N, H, E), (M, H, E), (M, H, E) -> (N, H, E); sequence i of the queries attends to sequence i of the keys."""
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    strides, constants = _launch(q, k, v, max_length)
    grid = (q_offsets.shape[0] - 1, q.shape[1])
    _forward[grid](q, k, v, y, q_offsets, k_offsets, scale, int(causal), *strides, **constants)
    return y


@torch.library.custom_op("saccade::short_attention_backward", mutates_args=())
def short_attention_backward(  # noqa: PLR0913
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    max_length: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in (q, k, v))
    strides, constants = _launch(q, k, v, max_length)
    grid = (q_offsets.shape[0] - 1, q.shape[1])
    _backward[grid](
        q, k, v, dy.contiguous(), dq, dk, dv, q_offsets, k_offsets, scale, int(causal), *strides, **constants
    )
    return dq, dk, dv


@short_attention.register_fake
def _(q, k, v, *rest):  # type: ignore[no-untyped-def]
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@short_attention_backward.register_fake
def _(dy, q, k, v, *rest):  # type: ignore[no-untyped-def]
    return tuple(torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in (q, k, v))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    tensors, ctx.rest = inputs[:5], inputs[5:]
    ctx.save_for_backward(*tensors)


def _gradients(ctx, dy):  # type: ignore[no-untyped-def]
    return *short_attention_backward(dy, *ctx.saved_tensors, *ctx.rest), *[None] * 5


short_attention.register_autograd(_gradients, setup_context=_save)
