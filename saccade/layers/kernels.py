"""Ways to compute attention for many heads at once.

All of them equal `explicit`; which one runs follows from structure.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.layers.attention import attend, dot
from saccade.layers.masks import Causal, Mask, Padding, Window

# Not cuDNN's: it makes a plan for every new shape, and batches of text have a new shape nearly every time.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def explicit(
    query: Float[Tensor, "B H Q E"],
    key: Float[Tensor, "B H K E"],
    value: Float[Tensor, "B H K Ev"],
    *,
    scale: float,
    allowed: Bool[Tensor, "..."] | None,
    term: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H Q Ev"], Float[Tensor, "B H Q K"]]:
    """The reference: holds all weights, so that they can be seen."""

    def score(q: Tensor, k: Tensor) -> Tensor:
        scores = dot(q * scale, k)
        return scores if term is None else scores + term

    return attend(query, key, value, score=score, mask=allowed, dropout=dropout)


def fused(
    query: Float[Tensor, "B H Q E"],
    key: Float[Tensor, "B H K E"],
    value: Float[Tensor, "B H K Ev"],
    *,
    scale: float,
    mask: Mask | None,
    q_pos: Int[Tensor, "b Q"],
    k_pos: Int[Tensor, "c K"],
    dropout: float = 0.0,
) -> Float[Tensor, "B H Q Ev"]:
    """SDPA: never holds the weights. As many queries as keys under a bare causal mask stand at the same positions."""
    match mask:
        case None:
            return _sdpa(query, key, value, scale=scale, dropout=dropout)
        case Causal() if query.shape[2] == key.shape[2]:
            return _sdpa(query, key, value, scale=scale, dropout=dropout, causal=True)
    return _masked(query, key, value, allowed=mask.dense(q_pos, k_pos)[:, None], scale=scale, dropout=dropout)


def _masked(
    query: Tensor, key: Tensor, value: Tensor, *, allowed: Bool[Tensor, "..."], scale: float, dropout: float
) -> Tensor:
    """SDPA with a matrix. Some of its kernels give NaN to a row that may attend to nothing, so it never sees one."""
    nothing = ~allowed.any(-1, keepdim=True)
    y = _sdpa(query, key, value, allowed=allowed | nothing, scale=scale, dropout=dropout)
    return y.masked_fill(nothing, 0.0)


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Tensor | None = None,
    scale: float,
    dropout: float,
    causal: bool = False,
) -> Tensor:
    with sdpa_kernel(BACKENDS):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, scale=scale, dropout_p=dropout, is_causal=causal
        )


def windowed(
    query: Float[Tensor, "B H N E"],
    key: Float[Tensor, "B H N E"],
    value: Float[Tensor, "B H N Ev"],
    *,
    scale: float,
    reach: int,
    causal: bool,
    keep: Bool[Tensor, "B N"] | None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H N Ev"]:
    """Restricted self-attention in O(reach n E): each block of queries meets its own block and the two beside it.

    Positions are 0, 1, 2 ...
    """
    batch, _, n, _ = query.shape
    block = max(min(reach, n), 1)  # a window wider than the text is no reason for more padding
    count = -(-n // block)
    extra = count * block - n
    q = F.pad(query, (0, 0, 0, extra)).unflatten(2, (count, block))  # (B, H, blocks, block, E)
    k, v = (_neighbours(F.pad(x, (0, 0, 0, extra)), block) for x in (key, value))
    inside = torch.arange(block, device=query.device)
    away = torch.arange(-block, 2 * block, device=query.device)[None, :] - inside[:, None]
    near = (away <= 0) & (away >= -reach) if causal else away.abs() <= reach
    real = query.new_ones(batch, n, dtype=torch.bool) if keep is None else keep
    real = _neighbours(F.pad(real, (0, extra))[:, None, :, None], block).squeeze(-1)  # (B, 1, blocks, 3 block)
    allowed = near & real[:, :, :, None, :]
    return _masked(q, k, v, allowed=allowed, scale=scale, dropout=dropout).flatten(2, 3)[:, :, :n]


def _neighbours(x: Tensor, block: int) -> Tensor:
    """(B, H, n, E) -> (B, H, blocks, 3 block, E): each block with the one before and the one after it."""
    padded = F.pad(x, (0, 0, block, block))
    return padded.unfold(2, 3 * block, block).transpose(-2, -1)


def window_of(mask: Mask | None) -> tuple[int, bool, Bool[Tensor, "B K"] | None] | None:
    """(reach, causal, keep) where the mask is a window, alone or with causal and padding masks; otherwise None."""
    reach, is_causal, keep = None, False, None
    for part in [] if mask is None else mask.conjuncts():
        match part:
            case Window(reach=r):
                reach = r if reach is None else min(reach, r)
            case Causal():
                is_causal = True
            case Padding(keep=k):
                keep = k if keep is None else keep & k
            case _:
                return None
    return None if reach is None else (reach, is_causal, keep)
