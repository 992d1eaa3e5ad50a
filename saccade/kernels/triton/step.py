"""One decoding step of a Transformer stack with the Triton kernels: five of them for a block without memory.

It computes what the blocks compute, from their own weights; `covers` says for which blocks. Imported on CUDA only.
"""

import math
from dataclasses import replace
from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.kernels.next_token import Best, Rules
from saccade.kernels.triton import head as head_kernels
from saccade.kernels.triton import linear as fast_linear
from saccade.kernels.triton import rows as row_kernels
from saccade.kernels.triton.decode_attention import attend_step
from saccade.kernels.triton.linear import LONGEST_ROW, Rows, floats, linear, norm_of, normalised
from saccade.layers.attention.static_cache import FixedState
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.memory import KeyValue

WIDEST_HEAD = 128


def covers(stack: Any) -> bool:
    """Whether every block is made of what the kernels know."""
    residuals = [residual for block in stack.blocks for residual in block.residuals]
    orders = {residual.pre for residual in residuals}
    norms = [residual.norm for residual in residuals]
    norms += [stack.norm] if orders == {True} else []
    if not all(residual.adds for residual in residuals):
        return False
    return len(orders) == 1 and all(_known_norm(norm) for norm in norms) and all(map(_known_block, stack.blocks))


def _known_norm(norm: nn.Module) -> bool:
    """With weights of its own, over one dimension that fits into a program."""
    match norm:
        case nn.LayerNorm():
            return norm.weight is not None and norm.bias is not None and norm.weight.numel() <= LONGEST_ROW
        case nn.RMSNorm():
            return norm.weight is not None and norm.eps is not None and norm.weight.numel() <= LONGEST_ROW
    return False


def _known_block(block: Any) -> bool:
    attentions = [block.self, *([] if block.cross is None else [block.cross])]
    plain = all(part.heads.term is None and part.heads.head_dim <= WIDEST_HEAD for part in attentions)
    # Heads that split the input have no such projection, and products may have been prepared for another device.
    linears = [part.heads.out for part in attentions]
    grouped = block.self.group > 1  # queries that share keys and values stand in another order
    stretched = block.self.rotary is not None and block.self.rotary.stretch is not None
    if not plain or grouped or stretched or not isinstance(block.feedforward, FeedForward):
        return False
    return all(isinstance(part, nn.Linear) for part in (*linears, block.feedforward.up, block.feedforward.down))


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


def fast_stack(stack: Any, x: Rows, state: FixedState) -> Rows:
    """One position further in every row; the caller moves `lengths`."""
    memories = iter(state.memory)
    for block, cache, window in zip(stack.blocks, state.own, stack.windows, strict=True):
        first, *middle, last = block.residuals
        projected = linear(_into(x, first), *_flat(block.self.project), counters=state.counters).values
        mixed = _attend(block.self, projected, cache, state, window=window)
        x = _onto(x, first, mixed, block.self.heads.out, state)
        if block.cross is not None:
            query = linear(_into(x, middle[0]), *_flat(block.cross.query), counters=state.counters).values
            mixed = _attend(block.cross, query, next(memories), state, window=None)
            x = _onto(x, middle[0], mixed, block.cross.heads.out, state)
        forward = block.feedforward
        hidden = linear(
            _into(x, last), forward.up.weight, forward.up.bias, gate=forward.gate, activation=forward.activation,
            counters=state.counters,
        )  # fmt: skip
        x = _onto(x, last, hidden.values, forward.down, state)
    return replace(x, norm=stack.norm) if x.norm is None else x


def _into(x: Rows, residual: Any) -> Rows:
    """What a sublayer reads."""
    return replace(x, norm=residual.norm) if residual.pre else x


def _onto(x: Rows, residual: Any, inner: Tensor, out: nn.Linear, state: FixedState) -> Rows:
    """The sublayer's last product, added to what it read."""
    y = linear(Rows(inner, x.stats), out.weight, out.bias, residual=x, counters=state.counters)
    return y if residual.pre else replace(y, norm=residual.norm)


def _flat(projection: Any) -> tuple[Tensor, Tensor | None]:
    """Weights of all heads as one matrix."""
    bias = projection.bias
    return projection.weight.flatten(0, 2), None if bias is None else bias.flatten()


def _attend(layer: Any, projected: Tensor, cache: KeyValue, state: FixedState, *, window: int | None) -> Tensor:
    """Attention of all heads, joined, before the output projection."""
    rows, (room, heads, head_dim) = projected.shape[0], cache.keys.shape[1:]
    own = projected.shape[1] == 3 * heads * head_dim  # the new key and value come with the query
    rotary = layer.rotary if own else None
    split = _split(rows * heads, room, projected.device) if own else 1
    out = projected.new_empty(rows, heads * head_dim)
    parts = floats(projected, rows * heads if split > 1 else 1, split, head_dim)
    sums = floats(projected, parts.shape[0], split, 2)
    block = 32 if split > 1 or room <= 64 else 64
    slots, lengths = (state.slots, state.lengths) if own else (state.source, state.memory_lengths)
    attend_step[(rows * heads, split)](
        projected, cache.keys, cache.values, slots, lengths, state.memory_mask.view(torch.int8), out, parts, sums,
        state.counters, layer.heads.scale, 0.0 if rotary is None else math.log(rotary.base),
        -1 if window is None else window, slots.stride(0), state.memory_mask.stride(0),
        OWN=own, BEAMS=own and state.beams, ROTARY=rotary is not None, HEADS=heads, HEAD=head_dim, ROOM=room,
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
    norm, (rows, dim), size = norm_of(x.norm), x.values.shape, weight.shape[0]
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
