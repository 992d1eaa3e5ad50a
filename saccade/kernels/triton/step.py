"""One decoding step of a Transformer stack with Triton kernels: five launches for a block without cross-attention.

Computes the same as the blocks (`TransformerStack.step_static` is the reference) from the weights that they describe;
`check_weights` raises `Unsupported` for stacks that it cannot express. Import on CUDA only.
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
from saccade.kernels.next_token import DecodingConstraints, TopTokens
from saccade.kernels.triton import head as head_kernels
from saccade.kernels.triton import linear as linear_kernels
from saccade.kernels.triton import rows as row_kernels
from saccade.kernels.triton.decode_attention import attend_step
from saccade.kernels.triton.linear import (
    MAX_NORM_WIDTH,
    DeferredNorm,
    NormArguments,
    empty_floats,
    linear,
    normalize_rows,
)
from saccade.kernels.weights import AttentionWeights, LinearWeights, NormWeights, StackWeights, Unsupported

MAX_HEAD_DIM = 128


@runtime_checkable
class StaticBuffers(Protocol):
    """The part of a `StaticState` that the kernels read: see `layers/attention/static_cache.py`."""

    @property
    def self_caches(self) -> Sequence[KeyValuePair]: ...

    @property
    def cross_caches(self) -> Sequence[KeyValuePair]: ...

    @property
    def memory_mask(self) -> Tensor: ...

    @property
    def memory_lengths(self) -> Tensor: ...

    @property
    def memory_rows(self) -> Tensor: ...

    @property
    def slots(self) -> Tensor: ...

    @property
    def lengths(self) -> Tensor: ...

    @property
    def counters(self) -> Tensor: ...

    @property
    def has_beams(self) -> bool: ...


def check_weights(weights: StackWeights) -> None:
    """Raise `Unsupported` where the kernels do not support a block."""
    for block in weights.blocks:
        for norm in block.norms:
            _check_norm(norm)
        for attention in (block.attention, *([] if block.cross is None else [block.cross])):
            if attention.head_dim > MAX_HEAD_DIM:
                raise Unsupported(f"its heads are wider than {MAX_HEAD_DIM}")
            _check_plain(attention.project, attention.out)
        _check_plain(block.feedforward.up, block.feedforward.down)
    if weights.pre_norm:
        _check_norm(weights.norm)


def _check_norm(norm: NormWeights) -> None:
    if norm.weight is None or norm.weight.numel() > MAX_NORM_WIDTH:
        raise Unsupported(f"the Triton step needs norms with weights over at most {MAX_NORM_WIDTH} features")


def _check_plain(*products: LinearWeights) -> None:
    if any(product.weight is None for product in products):
        raise Unsupported("its weights are packed for another device")


# ---- the stack


def embed_tokens(
    ids: Int[Tensor, " R"], table: Float[Tensor, "V D"], scale: float, positions: Tensor | None, lengths: Tensor
) -> DeferredNorm:
    """Token embeddings times `scale`, plus positional encodings."""
    rows, dim = ids.shape[0], table.shape[1]
    out, stats = table.new_empty(rows, dim), empty_floats(table, rows, 1, 2)
    row_kernels.embed_row[(rows,)](
        ids, table, lengths, table if positions is None else positions, out, stats, dim, scale,
        POSITIONS=positions is not None, BLOCK=triton.next_power_of_2(dim), num_warps=4,
        **linear_kernels.get_overlap_options(table),
    )  # fmt: skip
    return DeferredNorm(out, stats)


def run_stack(weights: StackWeights, x: DeferredNorm, state: StaticBuffers) -> DeferredNorm:
    """Decode one position of every row; the caller advances `lengths`."""
    memories, counters, pre = iter(state.cross_caches), state.counters, weights.pre_norm

    def enter(norm: NormWeights) -> DeferredNorm:
        """The input of a sublayer."""
        return replace(x, norm=norm) if pre else x

    def leave(inner: Tensor, out: LinearWeights, norm: NormWeights) -> DeferredNorm:
        """The sublayer's output projection, added to the residual stream."""
        y = linear(DeferredNorm(inner, x.stats), out, residual=x, counters=counters)
        return y if pre else replace(y, norm=norm)

    for block, cache in zip(weights.blocks, state.self_caches, strict=True):
        first, *middle, last = block.norms
        projected = linear(enter(first), block.attention.project, counters=counters).values
        attended = _attend_layer(block.attention, projected, cache, state, window=block.window)
        x = leave(attended, block.attention.out, first)
        if block.cross is not None:
            query = linear(enter(middle[0]), block.cross.project, counters=counters).values
            attended = _attend_layer(block.cross, query, next(memories), state, window=None)
            x = leave(attended, block.cross.out, middle[0])
        feedforward = block.feedforward
        hidden = linear(
            enter(last), feedforward.up, gate=feedforward.gate, activation=feedforward.activation, counters=counters
        )  # fmt: skip
        x = leave(hidden.values, feedforward.down, last)
    return replace(x, norm=weights.norm) if pre else x


def _attend_layer(
    layer: AttentionWeights, projected: Tensor, cache: KeyValuePair, state: StaticBuffers, *, window: int | None
) -> Tensor:
    """Multi-head attention with concatenated heads, before the output projection."""
    rows, (capacity, heads, head_dim) = projected.shape[0], cache.keys.shape[1:]
    own = projected.shape[1] == 3 * heads * head_dim  # the new key and value come with the query
    rotary_base = layer.rotary_base if own else None
    split = _choose_split(rows * heads, capacity, projected.device) if own else 1
    out = projected.new_empty(rows, heads * head_dim)
    parts = empty_floats(projected, rows * heads if split > 1 else 1, split, head_dim)
    sums = empty_floats(projected, parts.shape[0], split, 2)
    block = 32 if split > 1 or capacity <= 64 else 64
    slots, lengths = (state.slots, state.lengths) if own else (state.memory_rows, state.memory_lengths)
    attend_step[(rows * heads, split)](
        projected, cache.keys, cache.values, slots, lengths, state.memory_mask.view(torch.int8), out, parts, sums,
        state.counters, layer.scale, 0.0 if rotary_base is None else math.log(rotary_base),
        -1 if window is None else window, slots.stride(0), state.memory_mask.stride(0),
        OWN=own, BEAMS=own and state.has_beams, ROTARY=rotary_base is not None, HEADS=heads, HEAD=head_dim,
        CAPACITY=capacity,
        SPLIT=split, SPLITS=triton.next_power_of_2(split), BLOCK=block, BLOCK_E=triton.next_power_of_2(head_dim),
        num_warps=max(head_dim // 64, 1) if block == 32 else 4, **linear_kernels.get_overlap_options(projected),
    )  # fmt: skip
    return out


def _choose_split(pairs: int, capacity: int, device: torch.device) -> int:
    """The number of programs per row and head, so that all multiprocessors are busy."""
    needed = 2 * linear_kernels.count_multiprocessors(device) // pairs
    return max(1, min(needed, 16, capacity // 32))


# ---- next tokens


def select_next_tokens(
    x: DeferredNorm, weight: Float[Tensor, "V D"], constraints: DecodingConstraints, count: int
) -> TopTokens:
    """The best `count` tokens of each row, without storing all logits."""
    norm, (rows, dim), size = NormArguments.from_weights(x.norm), x.values.shape, weight.shape[0]
    single = rows == 1
    block_d = triton.next_power_of_2(dim)
    block_v = max(1, 16384 // block_d) if single else 128
    blocks = triton.cdiv(size, block_v)
    values, tops, totals = (empty_floats(weight, rows, blocks * n) for n in (count, 1, 1))
    tokens = torch.empty(rows, blocks * count, dtype=torch.int32, device=weight.device)
    lists = (values, tokens, tops, totals)
    constraint_arguments = (
        constraints.step,
        constraints.min_length,
        constraints.forced_prefix,
        constraints.max_lengths,
        constraints.suppressed,
    )
    if single:
        head_kernels.score_one_row[(blocks,)](
            x.values, norm.weight, norm.bias, norm.eps, weight, *constraint_arguments, *lists, size, dim,
            constraints.end_id,
            NORM=norm.kind, BEST=count, BLOCK_V=block_v, BLOCK_D=block_d, num_warps=8,
            **linear_kernels.get_overlap_options(weight),
        )  # fmt: skip
    else:
        block_m = min(max(triton.next_power_of_2(rows), 16), 128)
        head_kernels.score_several_rows[(triton.cdiv(rows, block_m), blocks)](
            normalize_rows(x), weight, *constraint_arguments, *lists, rows, size, dim, constraints.end_id,
            rows // constraints.max_lengths.shape[0],
            BEST=count, BLOCK_M=block_m, BLOCK_V=block_v, BLOCK_D=64 if weight.element_size() == 2 else 32,
            num_warps=8 if block_m > 64 else 4, num_stages=3, **linear_kernels.get_overlap_options(weight),
        )  # fmt: skip
    best = TopTokens(
        empty_floats(weight, rows, count),
        torch.empty_like(tokens[:, :count], dtype=torch.long),
        empty_floats(weight, rows),
    )
    head_kernels.merge_top_tokens[(rows,)](
        *lists, *best, blocks, BEST=count, BLOCKS=triton.next_power_of_2(blocks),
        ENTRIES=triton.next_power_of_2(blocks * count), num_warps=8, **linear_kernels.get_overlap_options(weight),
    )  # fmt: skip
    return best
