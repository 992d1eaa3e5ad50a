"""Fast inference with a bidirectional Transformer stack that runs many times with the same shapes, as in mask-predict.

Keys and values of memory and the biases of masks are computed once for all passes. The results equal those of the
blocks; `supports` tells for which stacks (capability `repeated_passes`).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from saccade.config.protocols import Reader, Stack, get_capabilities
from saccade.layers.attention import masks
from saccade.layers.attention.backends import SDPA_BACKENDS
from saccade.layers.attention.cache import KeyValue
from saccade.layers.blocks.residual import add_and_normalize
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.record import is_recording


class CrossMemory(NamedTuple):
    """Keys and values of memory for each block, and the bias that masks its padding."""

    keys_values: tuple[KeyValue, ...]
    bias: Float[Tensor, "N 1 1 S"] | None


def supports(part: Stack | Reader) -> bool:
    """Whether a stack or reader declares `repeated_passes`, and neither gradients nor attention weights are needed."""
    return not torch.is_grad_enabled() and not is_recording() and get_capabilities(part).repeated_passes


def build_key_bias(keep: Bool[Tensor, "N K"] | None, like: Float[Tensor, "..."]) -> Float[Tensor, "N 1 1 K"] | None:
    """The additive mask: 0 for real keys, -inf for padding, None without padding. Every row needs a real key."""
    if keep is None or (keep.device.type == "cpu" and bool(keep.all())):  # no synchronization on a CPU
        return None
    zeros = torch.zeros(keep.shape, dtype=like.dtype, device=keep.device)
    return zeros.masked_fill(~keep, -torch.inf)[:, None, None]


def project_memory(stack: TransformerStack, states: Float[Tensor, "N S D"], keep: Bool[Tensor, "N S"]) -> CrossMemory:
    return CrossMemory(
        tuple(block.cross.project_memory(states) for block in stack.blocks), build_key_bias(keep, states)
    )


def run_stack(
    stack: TransformerStack,
    x: Float[Tensor, "B T D"],
    bias: Float[Tensor, "B 1 1 T"] | None,
    memory: CrossMemory | None = None,
) -> Float[Tensor, "B T D"]:
    """The stack's output for padded sequences x; consecutive rows may share a row of memory."""
    positions = masks.make_positions(x.shape[1], x.device)
    hidden, residual = x, None
    own_bias = hide_own_position(bias, x) if stack.blocks[0].self.excludes_self else bias
    with sdpa_kernel(SDPA_BACKENDS, set_priority=True):
        for number, block in enumerate(stack.blocks):
            first, *others = block.residuals
            hidden, residual = first.begin_sublayer(hidden, residual)
            query, key, value = block.self.project_heads(hidden, positions)
            hidden, residual = first.end_sublayer(attend_heads(block.self.heads, query, key, value, own_bias), residual)
            if block.positional is not None:
                hidden, residual = block.positional_residual.begin_sublayer(hidden, residual)
                query, key, value = block.positional.project_heads(hidden, positions)
                hidden = attend_heads(block.positional.heads, query, key, value, bias)
                hidden, residual = block.positional_residual.end_sublayer(hidden, residual)
            if memory is not None:
                cross = memory.keys_values[number]
                hidden, residual = others[0].begin_sublayer(hidden, residual)
                query = block.cross.project_query(hidden)
                hidden = attend_heads(block.cross.heads, query, cross.keys, cross.values, memory.bias)
                hidden, residual = others[0].end_sublayer(hidden, residual)
            hidden, residual = others[-1].begin_sublayer(hidden, residual)
            hidden, residual = others[-1].end_sublayer(block.feedforward(hidden), residual)
        return add_and_normalize(hidden, residual, stack.norm, others[-1].dropout)[0]


def hide_own_position(
    bias: Float[Tensor, "N 1 1 T"] | None, hidden: Float[Tensor, "N T D"]
) -> Float[Tensor, "_ 1 T T"]:
    """Add a mask of the diagonal to the bias of the keys. It is finite, since all of -inf would give NaN."""
    lowest = torch.full((hidden.shape[1],), torch.finfo(hidden.dtype).min / 2, dtype=hidden.dtype, device=hidden.device)
    diagonal = lowest.diag()[None, None]
    return diagonal if bias is None else diagonal + bias


def attend_heads(
    heads: Any,
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "N K H E"],
    value: Float[Tensor, "N K H Ev"],
    bias: Float[Tensor, "_ 1 _ K"] | None,
) -> Float[Tensor, "B Q D"]:
    """Multi-head attention with output projection; rows that share a row of keys attend to it together."""
    grouped = query if len(query) == len(key) else query.reshape(len(key), -1, *query.shape[2:])
    q, k, v = (x.transpose(1, 2) for x in (grouped, key, value))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=heads.scale)
    out: Tensor = heads.out(y.transpose(1, 2).reshape(*query.shape[:2], -1))
    return out
