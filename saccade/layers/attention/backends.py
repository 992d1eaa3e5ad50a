"""Implementations of multi-head attention; all compute the same as `explicit_attention`, the reference.

`multihead.py` chooses one by the structure of the mask, the layout of the batch and the device.
"""

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.layers.attention import masks
from saccade.layers.attention.masks import Band, Mask
from saccade.layers.attention.scores import Score, attend, dot
from saccade.layers.packing import Packing

# cuDNN builds a plan for every new shape, and batches of sentences have a new shape nearly every time. Long sequences
# are usually cut to one length; there cuDNN is the fastest.
SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MIN_CUDNN_LENGTH = 512  # keys from which on cuDNN is tried first
LONG_SDPA_BACKENDS = [SDPBackend.CUDNN_ATTENTION, *SDPA_BACKENDS]
MIN_WINDOW_BLOCK = 32  # queries of a block in window attention: smaller matrix products are slow


def explicit_attention(
    query: Float[Tensor, "B H Q E"],
    key: Float[Tensor, "B H K Ek"],
    value: Float[Tensor, "B H K Ev"],
    *,
    scale: float,
    allowed: Bool[Tensor, "..."] | None,
    score: Score | None = None,
    score_term: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B H Q Ev"], Float[Tensor, "B H Q K"]]:
    """Reference implementation; returns the attention weights too, which need O(Q K) memory.

    `score` replaces the dot product times `scale`. `score_term` (B or 1, H, Q, K) is added before the softmax.
    """
    return attend(query, key, value, score=add_term(scale, score, score_term), mask=allowed, dropout=dropout)


def add_term(scale: float, score: Score | None, score_term: Float[Tensor, "..."] | None) -> Score:
    """The score that `explicit_attention` uses: the dot product times `scale` or another one, plus a term."""

    def compute_scores(q: Tensor, k: Tensor) -> Tensor:
        scores = dot(q * scale, k) if score is None else score(q, k)
        return scores if score_term is None else scores + score_term

    return compute_scores


def sdpa_attention(
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
    """`F.scaled_dot_product_attention`, which never stores the attention weights.

    A bare causal mask with as many queries as keys is passed on as `is_causal`: both are at the same positions then.
    Some SDPA kernels return NaN for a query that may attend to no key, so such a query attends to all of them here, and
    its output is set to zero.
    """
    causal, allowed, empty = False, None, None
    if mask is not None and mask.is_causal and query.shape[2] == key.shape[2]:
        causal = True
    elif mask is not None:
        allowed = mask.to_dense(q_pos, k_pos)[:, None]
        empty = ~allowed.any(-1, keepdim=True)
        allowed = allowed | empty
    long = (
        query.is_cuda and allowed is None and query.shape[-2] == key.shape[-2] and query.shape[-2] >= MIN_CUDNN_LENGTH
    )
    with sdpa_kernel(LONG_SDPA_BACKENDS if long else SDPA_BACKENDS, set_priority=True):
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, scale=scale, dropout_p=dropout, is_causal=causal
        )
    # masked_fill is slower than a product on a CPU.
    return y if empty is None else y * (~empty).to(y.dtype)


HAS_TRITON = importlib.util.find_spec("triton") is not None
MAX_FLASH_HEAD_DIM = 256
MAX_SHORT_KERNEL_LENGTH = 128  # tokens: longer sequences fill the tiles of flash attention
MAX_SHORT_KERNEL_LENGTH_FP32 = 32  # larger tiles without tensor cores take over a minute to compile


def supports_packed(query: Float[Tensor, "1 N H E"], packings: tuple[Packing, Packing]) -> bool:
    """Whether a kernel takes these packed sequences; otherwise they are unpacked to a padded batch and back."""
    max_length = max(part.max_length for part in packings)
    if query.device.type != "cuda" or (query.dtype == torch.float32 and max_length > MAX_SHORT_KERNEL_LENGTH_FP32):
        return False
    if max_length > MAX_SHORT_KERNEL_LENGTH:
        return query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] <= MAX_FLASH_HEAD_DIM
    return HAS_TRITON and query.shape[-1] in (16, 32, 64, 128)


def packed_attention(
    query: Float[Tensor, "N H E"],
    key: Float[Tensor, "M H E"],
    value: Float[Tensor, "M H E"],
    *,
    packings: tuple[Packing, Packing],
    causal: bool,
    scale: float,
) -> Float[Tensor, "N H E"]:
    """Attention inside packed sequences: sequence i of the queries attends to sequence i of the keys."""
    queries, keys = packings
    max_length = max(queries.max_length, keys.max_length)
    if max_length <= MAX_SHORT_KERNEL_LENGTH:
        from saccade.kernels.triton.short_attention import short_attention

        return short_attention(query, key, value, queries.offsets, keys.offsets, max_length, causal, scale)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    lengths = (queries.max_length, keys.max_length)
    y: Tensor = varlen_attn(  # type: ignore[assignment]  # one tensor, unless auxiliary outputs are requested
        query, key, value, queries.offsets, keys.offsets, *lengths, scale=scale, window_size=window
    )
    return y


def window_attention(
    query: Float[Tensor, "B H N E"],
    key: Float[Tensor, "B H N E"],
    value: Float[Tensor, "B H N Ev"],
    *,
    scale: float,
    band: Band,
    dropout: float = 0.0,
    sdpa: Callable[..., Tensor] | None = None,
) -> Float[Tensor, "B H N Ev"]:
    """Restricted self-attention in O(radius N E): each block of queries sees only the keys inside its windows.

    Positions are 0, 1, 2 ... All rows of the batch are concatenated, so that keys and values are copied only once.
    `sdpa` computes the attention of a block of queries; it is `sdpa_attention` by default.
    """
    batch, _, n, _ = query.shape
    radius, causal, keep = band
    assert radius is not None, "the mask has no window"
    before, after = min(radius, n), 0 if causal else min(radius, n)
    if keep is None and not dropout and supports_flash(query, value):
        return _flash_window_attention(query, key, value, scale=scale, window=(before, after))
    block = min(max(radius, MIN_WINDOW_BLOCK), n)
    count = -(-n // block)  # blocks of a sequence
    q = _concat_rows(query, count * block).unflatten(0, (-1, block))
    k, v = (_unfold_windows(_concat_rows(x, count * block), block, before, after).mT for x in (key, value))
    q_pos, k_pos = (torch.arange(size, device=query.device) for size in (block, before + block + after))
    distances = k_pos - before - q_pos[:, None]
    positions = torch.arange(count, device=query.device)[:, None] * block - before + k_pos
    real = ((positions >= 0) & (positions < n)).repeat(batch, 1)  # (blocks, keys)
    if keep is not None:
        real = real & _unfold_windows(F.pad(keep, (0, count * block - n)).flatten(), block, before, after)
    allowed = masks.dense((distances >= -before) & (distances <= after) & real[:, None])
    y = (sdpa or sdpa_attention)(  # (blocks, H, block, E)
        q.transpose(1, 2), k, v, scale=scale, mask=allowed, q_pos=q_pos[None], k_pos=k_pos[None], dropout=dropout
    )
    return y.transpose(1, 2).flatten(0, 1).unflatten(0, (batch, -1))[:, :n].transpose(1, 2)


def _concat_rows(x: Float[Tensor, "B H N E"], length: int) -> Float[Tensor, "M H E"]:
    """All sequences, each padded to `length`, concatenated."""
    rows = x.transpose(1, 2)
    return (F.pad(rows, (0, 0, 0, 0, 0, length - x.shape[2])) if length > x.shape[2] else rows).flatten(0, 1)


def _unfold_windows(x: Shaped[Tensor, "M ..."], block: int, before: int, after: int) -> Shaped[Tensor, "W ... K"]:
    """For each block of positions, the block with `before` positions before and `after` positions after it; a view."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (before, after)).unfold(0, before + block + after, block)


def supports_flash(query: Float[Tensor, "B H N E"], value: Float[Tensor, "B H N Ev"]) -> bool:
    """Whether flash attention supports these: half precision on a GPU of compute capability 8 or later."""
    fits = query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] == value.shape[-1] <= MAX_FLASH_HEAD_DIM
    return fits and query.device.type == "cuda" and torch.cuda.get_device_properties(query.device).major >= 8


def _flash_window_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: tuple[int, int]
) -> Tensor:
    """Flash attention with a window, which skips tiles outside of it."""
    from torch.nn.attention.varlen import varlen_attn

    batch, _, n, _ = query.shape
    offsets = torch.arange(0, batch * n + 1, n, dtype=torch.int32, device=query.device)
    q, k, v = (_concat_rows(x, n) for x in (query, key, value))
    y = varlen_attn(q, k, v, offsets, offsets, n, n, scale=scale, window_size=window)
    assert isinstance(y, Tensor)  # no auxiliary outputs were requested
    return y.unflatten(0, (batch, n)).transpose(1, 2)


def get_window_band(mask: Mask | None) -> Band | None:
    """The band of a mask with a window, alone or combined with causal and padding masks; None for other masks."""
    band = None if mask is None else mask.to_band()
    return None if band is None or band.radius is None else band
