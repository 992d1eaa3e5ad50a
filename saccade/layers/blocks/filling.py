"""A Transformer stack that looks in both directions, over several texts of one shape, without gradients.

What does not change from text to text is made once: keys and values of memory, and what masks add to scores. It
computes what the blocks compute, from their own weights; `covers` says for which blocks.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from saccade.config.protocols import Reader, Stack, get_capabilities
from saccade.layers.attention import masks
from saccade.layers.attention.backends import BACKENDS
from saccade.layers.attention.cache import KeyValue
from saccade.layers.blocks.residual import add_and_normalize
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.record import recording


class Looked(NamedTuple):
    """Memory as each block attends to it."""

    seen: tuple[KeyValue, ...]
    bias: Float[Tensor, "N 1 1 S"] | None


def covers(part: Stack | Reader) -> bool:
    """Whether a stack or a reader declares it, and nobody asks for gradients or attention weights."""
    return not torch.is_grad_enabled() and not recording() and get_capabilities(part).repeated_passes


def bias_of(keep: Bool[Tensor, "N K"] | None, like: Float[Tensor, "..."]) -> Float[Tensor, "N 1 1 K"] | None:
    """What is added to scores: nothing for real keys. Every row must have one."""
    if keep is None or (keep.device.type == "cpu" and bool(keep.all())):  # where asking costs nothing
        return None
    zeros = torch.zeros(keep.shape, dtype=like.dtype, device=keep.device)
    return zeros.masked_fill(~keep, -torch.inf)[:, None, None]


def look(stack: TransformerStack, states: Float[Tensor, "N S D"], keep: Bool[Tensor, "N S"]) -> Looked:
    return Looked(tuple(block.cross.keys_values(states) for block in stack.blocks), bias_of(keep, states))


def over_texts(
    stack: TransformerStack,
    x: Float[Tensor, "B T D"],
    bias: Float[Tensor, "B 1 1 T"] | None,
    looked: Looked | None = None,
) -> Float[Tensor, "B T D"]:
    """What the stack gives; rows next to each other may share a row of memory."""
    at = masks.positions(x.shape[1], x.device)
    hidden, residual = x, None
    with sdpa_kernel(BACKENDS, set_priority=True):
        for number, block in enumerate(stack.blocks):
            first, *others = block.residuals
            hidden, residual = first.before(hidden, residual)
            query, key, value = block.self.turned(hidden, at)
            hidden, residual = first.after(mixed(block.self.heads, query, key, value, bias), residual)
            if looked is not None:
                seen = looked.seen[number]
                hidden, residual = others[0].before(hidden, residual)
                (query,) = block.cross.query(hidden)
                hidden = mixed(block.cross.heads, query, seen.keys, seen.values, looked.bias)
                hidden, residual = others[0].after(hidden, residual)
            hidden, residual = others[-1].before(hidden, residual)
            hidden, residual = others[-1].after(block.feedforward(hidden), residual)
        return add_and_normalize(hidden, residual, stack.norm, others[-1].dropout)[0]


def mixed(
    heads: Any,
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "N K H E"],
    value: Float[Tensor, "N K H E"],
    bias: Float[Tensor, "N 1 1 K"] | None,
) -> Float[Tensor, "B Q D"]:
    """Attention of all heads, joined; rows that share a row of keys ask it together."""
    together = query if len(query) == len(key) else query.reshape(len(key), -1, *query.shape[2:])
    q, k, v = (x.transpose(1, 2) for x in (together, key, value))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=heads.scale)
    joined: Tensor = heads.out(y.transpose(1, 2).reshape(*query.shape[:2], -1))
    return joined
