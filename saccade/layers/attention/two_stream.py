"""Two streams through one stack, for a language model of any order of the words (XLNet, Yang et al. 2019).

Every position has two vectors. Its content h knows its own token; its query g knows only where it stands, so that it
can be asked for the token. Both pass the same layers and ask the same keys and values, made of the contents of the text
and of a memory of the text before. Where a key stands counts inside attention alone, by a score term.
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


def earlier(order: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Whether the token at j has been seen when the one at i is asked for (Yang et al. 2019, equation 3).

    `order` numbers the positions that are asked for, in whatever order; a number below 0 means that all are given it.
    """
    return (order[:, None, :] < order[:, :, None]) | (order[:, None, :] < 0)


class Streams(NamedTuple):
    """What a stack gives: both streams, and what it remembers of the text for the next one."""

    content: Float[Tensor, "B T D"]
    query: Float[Tensor, "B M D"] | None
    memory: tuple[Float[Tensor, "B L D"], ...]


@dataclass(frozen=True)
class Sight:
    """What one stream sees of memory and text, and where it stands among them."""

    mask: Mask
    at: Int[Tensor, "b Q"]


def two_streams(
    stack: TransformerStack,
    content: Float[Tensor, "B T D"],
    query: Float[Tensor, "B M D"] | None = None,
    *,
    allowed: Bool[Tensor, "B T T"],
    at: Int[Tensor, "B M"] | None = None,
    segments: Int[Tensor, "B K"] | None = None,
    memory: Sequence[Float[Tensor, "B L D"]] = (),
    remember: int = 0,
) -> Streams:
    """One text after those in `memory`, into which no gradient goes, through the blocks of a post-norm stack.

    `allowed` is what a query may see, as `earlier` makes it; contents see themselves too. Queries stand `at` some
    positions of the text. All of memory may be seen; `segments` are those of memory and text. The last `remember`
    inputs of each block are given back as the memory for the text that follows.
    """
    before = memory[0].shape[1] if memory else 0
    contents, queries = sights(allowed, at, segments, before)
    again = stack.recompute and stack.training
    over = partial(checkpoint, over_block, use_reentrant=False) if again else over_block
    remembered = []
    for number, block in enumerate(stack.blocks):
        past = memory[number].detach() if memory else content[:, :0]
        if remember:
            remembered.append(torch.cat((past, content), 1)[:, -remember:].detach())
        content, query = over(block, content, query, past, contents, queries)
    return Streams(content, query, tuple(remembered))


def over_block(
    block: Block, content: Tensor, query: Tensor | None, past: Tensor, contents: Sight, queries: Sight
) -> tuple[Tensor, Tensor | None]:
    """Both streams through one block, whose keys and values are those of its memory and of the contents."""
    along = torch.cat((past, content), 1)
    places = masks.positions(along.shape[1], along.device)
    own, key, value = block.self.turned(along, places)
    content = attend(block, content, own[:, past.shape[1] :], key, value, contents, places)
    if query is None:
        return content, None
    asked = block.self.turned(query, queries.at)[0]
    return content, attend(block, query, asked, key, value, queries, places)


def attend(
    block: Block, x: Tensor, query: Tensor, key: Tensor, value: Tensor, sight: Sight, places: Tensor
) -> Float[Tensor, "B Q D"]:
    """A post-norm block over one stream, whose queries, keys and values are made already: that changes no input."""
    first, *others = block.residuals
    hidden, residual = first.before(x, None)
    hidden = block.self.heads(block.self, query, key, value, mask=sight.mask, q_pos=sight.at, k_pos=places)
    hidden, residual = first.after(hidden, residual)
    if block.feedforward is not None:
        hidden, residual = others[-1].before(hidden, residual)
        hidden, residual = others[-1].after(block.feedforward(hidden), residual)
    return hidden


def sights(
    allowed: Bool[Tensor, "B T T"], at: Int[Tensor, "B M"] | None, segments: Int[Tensor, "B K"] | None, before: int
) -> tuple[Sight, Sight]:
    """What contents and queries see, the same in all blocks, where `before` states are remembered."""
    length = allowed.shape[1]
    itself = torch.eye(length, dtype=torch.bool, device=allowed.device)
    there = masks.positions(length, allowed.device)
    everywhere = there.expand(len(allowed), -1)
    asked = everywhere if at is None else at
    chosen = allowed if at is None else allowed.gather(1, at[..., None].expand(-1, -1, length))
    found = []
    for seen, where, place in ((allowed | itself, everywhere, there), (chosen, asked, asked)):
        mask: Mask = masks.dense(F.pad(seen, (before, 0), value=True))
        if segments is not None:
            mask = mask & masks.segments(segments.gather(1, before + where), segments)
        found.append(Sight(mask, before + place))
    return found[0], found[1]
