"""Two-stream self-attention for permutation language modelling (XLNet, Yang et al. 2019, section 2.3).

Every position has two vectors: the content stream h, which encodes its token, and the query stream g, which encodes
only its position and predicts the token. Both streams go through the same layers and attend to the same keys and
values, which come from the content stream and from a memory of the previous segment. Relative positions enter as a
score term.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from saccade.layers.attention import masks
from saccade.layers.attention.masks import Mask
from saccade.layers.blocks.transformer import Block, TransformerStack


def build_permutation_mask(order: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Whether the query at position i may attend to the token at position j (Yang et al. 2019, equation 3).

    `order` is the rank of each position in the factorization order; tokens with a negative rank are visible to all.
    """
    return (order[:, None, :] < order[:, :, None]) | (order[:, None, :] < 0)


class Streams(NamedTuple):
    """The outputs of both streams, and the memory of each block for the next segment."""

    content: Float[Tensor, "B T D"]
    query: Float[Tensor, "B M D"] | None
    memory: tuple[Float[Tensor, "B L D"], ...]


@dataclass(frozen=True)
class StreamView:
    """The mask of one stream over memory and segment, and the positions of its queries among these keys."""

    mask: Mask
    positions: Int[Tensor, "b Q"]


def run_two_streams(
    stack: TransformerStack,
    content: Float[Tensor, "B T D"],
    query: Float[Tensor, "B M D"] | None = None,
    *,
    allowed: Bool[Tensor, "B T T"],
    query_positions: Int[Tensor, "B M"] | None = None,
    segments: Int[Tensor, "B K"] | None = None,
    memory: Sequence[Float[Tensor, "B L D"]] = (),
    memory_length: int = 0,
) -> Streams:
    """Run both streams through the blocks of a post-norm stack.

    `allowed` is the mask of the query stream (see `build_permutation_mask`); the content stream also sees its own
    token. Queries are at `query_positions` of the sequence, by default at all of them. All of `memory`, which gets no
    gradient, is visible. `segments` are those of memory and sequence. The last `memory_length` inputs of each block are
    returned as the memory for the next segment.
    """
    past_length = memory[0].shape[1] if memory else 0
    content_view, query_view = build_stream_views(allowed, query_positions, segments, past_length)
    recompute = stack.recompute and stack.training
    run = partial(checkpoint, run_block, use_reentrant=False) if recompute else run_block
    new_memory = []
    for number, block in enumerate(stack.blocks):
        past = memory[number].detach() if memory else content[:, :0]
        if memory_length:
            new_memory.append(torch.cat((past, content), 1)[:, -memory_length:].detach())
        content, query = run(block, content, query, past, content_view, query_view)
    return Streams(content, query, tuple(new_memory))


def run_block(
    block: Block, content: Tensor, query: Tensor | None, past: Tensor, content_view: StreamView, query_view: StreamView
) -> tuple[Tensor, Tensor | None]:
    """Both streams after one block; keys and values come from the block's memory and the content stream."""
    context = torch.cat((past, content), 1)
    k_pos = masks.make_positions(context.shape[1], context.device)
    content_queries, key, value = block.self.project_heads(context, k_pos)
    content = attend_stream(block, content, content_queries[:, past.shape[1] :], key, value, content_view, k_pos)
    if query is None:
        return content, None
    queries = block.self.project_heads(query, query_view.positions)[0]
    return content, attend_stream(block, query, queries, key, value, query_view, k_pos)


def attend_stream(
    block: Block, x: Tensor, query: Tensor, key: Tensor, value: Tensor, view: StreamView, k_pos: Tensor
) -> Float[Tensor, "B Q D"]:
    """Apply a post-norm block to one stream x, given its queries and the keys and values of both streams."""
    first, *others = block.residuals
    hidden, residual = first.begin_sublayer(x, None)
    hidden = block.self.heads(block.self, query, key, value, mask=view.mask, q_pos=view.positions, k_pos=k_pos)
    hidden, residual = first.end_sublayer(hidden, residual)
    if block.feedforward is not None:
        hidden, residual = others[-1].begin_sublayer(hidden, residual)
        hidden, residual = others[-1].end_sublayer(block.feedforward(hidden), residual)
    return hidden


def build_stream_views(
    allowed: Bool[Tensor, "B T T"],
    query_positions: Int[Tensor, "B M"] | None,
    segments: Int[Tensor, "B K"] | None,
    memory_length: int,
) -> tuple[StreamView, StreamView]:
    """The views of the content stream and of the query stream, which are the same in all blocks."""
    length = allowed.shape[1]
    own_token = torch.eye(length, dtype=torch.bool, device=allowed.device)
    positions = masks.make_positions(length, allowed.device)
    content_rows = positions.expand(len(allowed), -1)
    query_rows, query_allowed = content_rows, allowed
    if query_positions is not None:
        query_rows = query_positions
        query_allowed = allowed.gather(1, query_positions[..., None].expand(-1, -1, length))
    views = []
    for visible, rows, q_pos in (
        (allowed | own_token, content_rows, positions),
        (query_allowed, query_rows, query_rows),
    ):
        mask: Mask = masks.dense(F.pad(visible, (memory_length, 0), value=True))
        if segments is not None:
            mask = mask & masks.segments(segments.gather(1, memory_length + rows), segments)
        views.append(StreamView(mask, memory_length + q_pos))
    return views[0], views[1]
