"""One decoding step of a Transformer stack with the Triton kernels: five of them for a block without memory.

The reference is `TransformerStack.step_static`: it computes what the blocks compute, from the weights that they
describe; `check_weights` says for which. Imported on CUDA only.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from saccade.kernels.cpu.stack_step import KeyValuePair
from saccade.kernels.next_token import Best, Rules
from saccade.kernels.triton import head as head_kernels
from saccade.kernels.triton import linear as fast_linear
from saccade.kernels.triton import rows as row_kernels
from saccade.kernels.triton.decode_attention import attend_step
from saccade.kernels.triton.linear import LONGEST_ROW, NormArguments, Rows, floats, linear, normalised
from saccade.kernels.weights import AttentionWeights, LinearWeights, NormWeights, StackWeights, Unsupported

WIDEST_HEAD = 128


@runtime_checkable
class StaticBuffers(Protocol):
    """What the kernels know of a state in buffers that never move: see `layers/attention/static_cache.py`."""

    @property
    def own(self) -> Sequence[KeyValuePair]: ...

    @property
    def memory(self) -> Sequence[KeyValuePair]: ...

    @property
    def memory_mask(self) -> Tensor: ...

    @property
    def memory_lengths(self) -> Tensor: ...

    @property
    def source(self) -> Tensor: ...

    @property
    def slots(self) -> Tensor: ...

    @property
    def lengths(self) -> Tensor: ...

    @property
    def counters(self) -> Tensor: ...

    @property
    def beams(self) -> bool: ...


def check_weights(weights: StackWeights) -> None:
    """Raises `Unsupported` where a block is made of something that the kernels do not know."""
    for block in weights.blocks:
        for norm in block.norms:
            _check_norm(norm)
        for attention in (block.attention, *([] if block.cross is None else [block.cross])):
            if attention.head_dim > WIDEST_HEAD:
                raise Unsupported(f"its heads are wider than {WIDEST_HEAD}")
            _check_plain(attention.project, attention.out)
        _check_plain(block.feedforward.up, block.feedforward.down)
    if weights.pre_norm:
        _check_norm(weights.norm)


def _check_norm(norm: NormWeights) -> None:
    if norm.weight is None or norm.weight.numel() > LONGEST_ROW:
        raise Unsupported(f"the Triton step needs norms with weights over at most {LONGEST_ROW} features")


def _check_plain(*products: LinearWeights) -> None:
    if any(product.weight is None for product in products):
        raise Unsupported("its products are prepared for another device")


# ---- the stack


def fast_embed(
    ids: Int[Tensor, " R"], table: Float[Tensor, "V D"], scale: float, positions: Tensor | None, lengths: Tensor
) -> Rows:
    """Token vectors times `scale`, plus those of their positions."""
    rows, dim = ids.shape[0], table.shape[1]
    out, stats = table.new_empty(rows, dim), floats(table, rows, 1, 2)
    row_kernels.embed[(rows,)](
        ids, table, lengths, table if positions is None else positions, out, stats, dim, scale,
        POSITIONS=positions is not None, BLOCK=triton.next_power_of_2(dim), num_warps=4, **fast_linear.overlap(table),
    )  # fmt: skip
    return Rows(out, stats)


def fast_stack(weights: StackWeights, x: Rows, state: StaticBuffers) -> Rows:
    """One position further in every row; the caller moves `lengths`."""
    memories, counters, pre = iter(state.memory), state.counters, weights.pre_norm

    def enter(norm: NormWeights) -> Rows:
        """What a sublayer reads."""
        return replace(x, norm=norm) if pre else x

    def leave(inner: Tensor, out: LinearWeights, norm: NormWeights) -> Rows:
        """The sublayer's last product, added to the residual stream."""
        y = linear(Rows(inner, x.stats), out, residual=x, counters=counters)
        return y if pre else replace(y, norm=norm)

    for block, cache in zip(weights.blocks, state.own, strict=True):
        first, *middle, last = block.norms
        projected = linear(enter(first), block.attention.project, counters=counters).values
        mixed = _attend(block.attention, projected, cache, state, window=block.window)
        x = leave(mixed, block.attention.out, first)
        if block.cross is not None:
            query = linear(enter(middle[0]), block.cross.project, counters=counters).values
            mixed = _attend(block.cross, query, next(memories), state, window=None)
            x = leave(mixed, block.cross.out, middle[0])
        forward = block.feedforward
        hidden = linear(
            enter(last), forward.up, gate=forward.gate, activation=forward.activation, counters=counters
        )  # fmt: skip
        x = leave(hidden.values, forward.down, last)
    return replace(x, norm=weights.norm) if pre else x


def _attend(
    layer: AttentionWeights, projected: Tensor, cache: KeyValuePair, state: StaticBuffers, *, window: int | None
) -> Tensor:
    """Attention of all heads, joined, before the output projection."""
    rows, (room, heads, head_dim) = projected.shape[0], cache.keys.shape[1:]
    own = projected.shape[1] == 3 * heads * head_dim  # the new key and value come with the query
    rotary_base = layer.rotary_base if own else None
    split = _split(rows * heads, room, projected.device) if own else 1
    out = projected.new_empty(rows, heads * head_dim)
    parts = floats(projected, rows * heads if split > 1 else 1, split, head_dim)
    sums = floats(projected, parts.shape[0], split, 2)
    block = 32 if split > 1 or room <= 64 else 64
    slots, lengths = (state.slots, state.lengths) if own else (state.source, state.memory_lengths)
    attend_step[(rows * heads, split)](
        projected, cache.keys, cache.values, slots, lengths, state.memory_mask.view(torch.int8), out, parts, sums,
        state.counters, layer.scale, 0.0 if rotary_base is None else math.log(rotary_base),
        -1 if window is None else window, slots.stride(0), state.memory_mask.stride(0),
        OWN=own, BEAMS=own and state.beams, ROTARY=rotary_base is not None, HEADS=heads, HEAD=head_dim, ROOM=room,
        SPLIT=split, SPLITS=triton.next_power_of_2(split), BLOCK=block, BLOCK_E=triton.next_power_of_2(head_dim),
        num_warps=max(head_dim // 64, 1) if block == 32 else 4, **fast_linear.overlap(projected),
    )  # fmt: skip
    return out


def _split(pairs: int, room: int, device: torch.device) -> int:
    """Into how many parts the keys of one row and head go, so that all processors have work."""
    wanted = 2 * fast_linear.processors(device) // pairs
    return max(1, min(wanted, 16, room // 32))


# ---- what comes next


def fast_head(x: Rows, weight: Float[Tensor, "V D"], rules: Rules, count: int) -> Best:
    """The best `count` tokens of each row, without holding all logits."""
    norm, (rows, dim), size = NormArguments.of(x.norm), x.values.shape, weight.shape[0]
    single = rows == 1
    block_d = triton.next_power_of_2(dim)
    block_v = max(1, 16384 // block_d) if single else 128
    blocks = triton.cdiv(size, block_v)
    values, tops, totals = (floats(weight, rows, blocks * n) for n in (count, 1, 1))
    tokens = torch.empty(rows, blocks * count, dtype=torch.int32, device=weight.device)
    lists = (values, tokens, tops, totals)
    about = (rules.step, rules.least, rules.prefix, rules.limits, rules.never)
    if single:
        head_kernels.head_one[(blocks,)](
            x.values, norm.weight, norm.bias, norm.eps, weight, *about, *lists, size, dim, rules.end,
            NORM=norm.kind, BEST=count, BLOCK_V=block_v, BLOCK_D=block_d, num_warps=8, **fast_linear.overlap(weight),
        )  # fmt: skip
    else:
        block_m = min(max(triton.next_power_of_2(rows), 16), 128)
        head_kernels.head_several[(triton.cdiv(rows, block_m), blocks)](
            normalised(x), weight, *about, *lists, rows, size, dim, rules.end, rows // rules.limits.shape[0],
            BEST=count, BLOCK_M=block_m, BLOCK_V=block_v, BLOCK_D=64 if weight.element_size() == 2 else 32,
            num_warps=8 if block_m > 64 else 4, num_stages=3, **fast_linear.overlap(weight),
        )  # fmt: skip
    best = Best(
        floats(weight, rows, count), torch.empty_like(tokens[:, :count], dtype=torch.long), floats(weight, rows)
    )
    head_kernels.merge[(rows,)](
        *lists, *best, blocks, BEST=count, BLOCKS=triton.next_power_of_2(blocks),
        ENTRIES=triton.next_power_of_2(blocks * count), num_warps=8, **fast_linear.overlap(weight),
    )  # fmt: skip
    return best
