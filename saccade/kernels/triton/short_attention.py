"""Attention inside short texts of a packed row, as one Triton kernel for each direction.

A program takes one text and one head: all of its queries and keys fit on the chip, so that the weights are never
written, and the backward pass makes them again from queries and keys. Flash attention works in tiles of 128 x 128, of
which a sentence of 30 words uses a twentieth; here the tile is as small as the longest text allows. Equal to
`kernels.explicit` on each text.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
@no_type_check
def _part(base, offsets, text, head, along, across, tile: tl.constexpr, width: tl.constexpr):
    """Pointers to one head of one text, (tile, width), and which of its rows there are."""
    begin = tl.load(offsets + text)
    length = tl.load(offsets + text + 1) - begin
    rows, columns = tl.arange(0, tile), tl.arange(0, width)
    there = (rows < length)[:, None] & (columns >= 0)[None, :]
    return base + (begin + rows).to(tl.int64)[:, None] * along + head * across + columns[None, :], there, length


@triton.jit
@no_type_check
def _weights(q, k, q_length, k_length, scale, causal, tile: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    rows, columns = tl.arange(0, tile), tl.arange(0, tile)
    seen = (columns < k_length)[None, :] & (rows < q_length)[:, None]
    seen = seen & ((columns[None, :] <= rows[:, None]) | (causal == 0))
    scores = tl.where(seen, scores, float("-inf"))
    highest = tl.max(scores, 1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)  # a query that sees nothing gets zeros
    weights = tl.exp(scores - highest[:, None])
    total = tl.sum(weights, 1)
    return weights / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["causal"])  # one compilation serves both
@no_type_check
def _forward(  # noqa: PLR0913
    q, k, v, y, q_offsets, k_offsets, scale, causal, q_along, q_across, k_along, k_across, v_along, v_across,
    heads: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    text, head = tl.program_id(0), tl.program_id(1)
    q_at, q_there, q_length = _part(q, q_offsets, text, head, q_along, q_across, tile, width)
    if q_length > 0:
        k_at, k_there, k_length = _part(k, k_offsets, text, head, k_along, k_across, tile, width)
        v_at, _, _ = _part(v, k_offsets, text, head, v_along, v_across, tile, width)
        y_at, _, _ = _part(y, q_offsets, text, head, heads * width, width, tile, width)
        queries, keys = tl.load(q_at, mask=q_there, other=0.0), tl.load(k_at, mask=k_there, other=0.0)
        weights = _weights(queries, keys, q_length, k_length, scale, causal, tile)
        values = tl.load(v_at, mask=k_there, other=0.0)
        out = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        tl.store(y_at, out.to(y.dtype.element_ty), mask=q_there)


@triton.jit(do_not_specialize=["causal"])
@no_type_check
def _backward(  # noqa: PLR0913
    q, k, v, dy, dq, dk, dv, q_offsets, k_offsets, scale, causal,
    q_along, q_across, k_along, k_across, v_along, v_across,
    heads: tl.constexpr, tile: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    text, head = tl.program_id(0), tl.program_id(1)
    q_at, q_there, q_length = _part(q, q_offsets, text, head, q_along, q_across, tile, width)
    k_at, k_there, k_length = _part(k, k_offsets, text, head, k_along, k_across, tile, width)
    if q_length + k_length > 0:
        v_at, _, _ = _part(v, k_offsets, text, head, v_along, v_across, tile, width)
        dy_at, _, _ = _part(dy, q_offsets, text, head, heads * width, width, tile, width)
        dq_at, _, _ = _part(dq, q_offsets, text, head, heads * width, width, tile, width)
        dk_at, _, _ = _part(dk, k_offsets, text, head, heads * width, width, tile, width)
        dv_at, _, _ = _part(dv, k_offsets, text, head, heads * width, width, tile, width)
        queries, keys = tl.load(q_at, mask=q_there, other=0.0), tl.load(k_at, mask=k_there, other=0.0)
        values, dout = tl.load(v_at, mask=k_there, other=0.0), tl.load(dy_at, mask=q_there, other=0.0)
        weights = _weights(queries, keys, q_length, k_length, scale, causal, tile)
        dvalues = tl.dot(tl.trans(weights.to(dout.dtype)), dout, input_precision="ieee")
        tl.store(dv_at, dvalues.to(dv.dtype.element_ty), mask=k_there)
        dweights = tl.dot(dout, tl.trans(values), input_precision="ieee")
        dscores = weights * (dweights - tl.sum(weights * dweights, 1)[:, None]) * scale
        narrow = dscores.to(queries.dtype)
        dqueries = tl.dot(narrow, keys, input_precision="ieee")
        tl.store(dq_at, dqueries.to(dq.dtype.element_ty), mask=q_there)
        dkeys = tl.dot(tl.trans(narrow), queries, input_precision="ieee")
        tl.store(dk_at, dkeys.to(dk.dtype.element_ty), mask=k_there)


def _launch(q: Tensor, k: Tensor, v: Tensor, longest: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """The strides of queries, keys and values, and the constants of the kernel."""
    strides = tuple(part.stride(i) for part in (q, k, v) for i in (0, 1))
    warps = {16: 1, 32: 2, 64: 4}.get(longest, 8)
    return strides, {"heads": q.shape[1], "tile": longest, "width": q.shape[2], "num_warps": warps}


@torch.library.custom_op("saccade::short_attention", mutates_args=())
def short_attention(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    longest: int, causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    """(N, H, E), (M, H, E), (M, H, E) -> (N, H, E); text i of the queries attends to text i of the keys."""
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    strides, constants = _launch(q, k, v, longest)
    grid = (q_offsets.shape[0] - 1, q.shape[1])
    _forward[grid](q, k, v, y, q_offsets, k_offsets, scale, int(causal), *strides, **constants)
    return y


@torch.library.custom_op("saccade::short_attention_backward", mutates_args=())
def short_attention_backward(  # noqa: PLR0913
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    longest: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in (q, k, v))
    strides, constants = _launch(q, k, v, longest)
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
