"""Ways to compute attention for many heads at once.

All of them equal `explicit`; which one runs follows from structure.
"""

import importlib.util

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.layers.attention import masks
from saccade.layers.attention.masks import Band, Mask
from saccade.layers.attention.scores import attend, dot
from saccade.layers.packing import Packing

# cuDNN makes a plan for every new shape, and batches of sentences have a new shape nearly every time; long rows are cut
# to one length, and there it is the fastest.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
LONG = 512  # keys
FOR_LONG = [SDPBackend.CUDNN_ATTENTION, *BACKENDS]
BLOCK = 32  # least number of queries that share their keys in a window: smaller products are slow


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
    """SDPA: never holds the weights. As many queries as keys under a bare causal mask stand at the same positions.

    Some of its kernels give NaN to a query that may attend to nothing, so they never see one; it gets zeros.
    """
    causal, allowed, nothing = False, None, None
    if mask is not None and mask.is_causal and query.shape[2] == key.shape[2]:
        causal = True
    elif mask is not None:
        allowed = mask.dense(q_pos, k_pos)[:, None]
        nothing = ~allowed.any(-1, keepdim=True)
        allowed = allowed | nothing
    long = query.is_cuda and allowed is None and query.shape[-2] == key.shape[-2] and query.shape[-2] >= LONG
    with sdpa_kernel(FOR_LONG if long else BACKENDS, set_priority=True):
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, scale=scale, dropout_p=dropout, is_causal=causal
        )
    # A product of few numbers with many, where filling is slow on a CPU.
    return y if nothing is None else y * (~nothing).to(y.dtype)


TRITON = importlib.util.find_spec("triton") is not None
WIDEST = 256  # numbers of a head that flash attention takes
SHORT = 128  # tokens: longer texts fill the tiles of flash attention
SHORT_FP32 = 32  # tensor cores have no float32, and larger tiles without them take over a minute to compile


def packs(query: Float[Tensor, "1 N H E"], packed: tuple[Packing, Packing]) -> bool:
    """Whether there is a kernel for packed rows; otherwise they go to a rectangle and back."""
    longest = max(part.longest for part in packed)
    if query.device.type != "cuda" or (query.dtype == torch.float32 and longest > SHORT_FP32):
        return False
    if longest > SHORT:
        return query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] <= WIDEST
    return TRITON and query.shape[-1] in (16, 32, 64, 128)


def packed(
    query: Float[Tensor, "N H E"],
    key: Float[Tensor, "M H E"],
    value: Float[Tensor, "M H E"],
    *,
    packs: tuple[Packing, Packing],
    causal: bool,
    scale: float,
) -> Float[Tensor, "N H E"]:
    """Attention inside each text of packed rows: text i of the queries to text i of the keys."""
    queries, keys = packs
    longest = max(queries.longest, keys.longest)
    if longest <= SHORT:
        from saccade.kernels.triton.short_attention import short_attention

        return short_attention(query, key, value, queries.offsets, keys.offsets, longest, causal, scale)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    y: Tensor = varlen_attn(  # type: ignore[assignment]  # a tensor alone, as long as nothing else is asked for
        query, key, value, queries.offsets, keys.offsets, queries.longest, keys.longest, scale=scale, window_size=window
    )
    return y


def windowed(
    query: Float[Tensor, "B H N E"],
    key: Float[Tensor, "B H N E"],
    value: Float[Tensor, "B H N Ev"],
    *,
    scale: float,
    band: Band,
    dropout: float = 0.0,
) -> Float[Tensor, "B H N Ev"]:
    """Restricted self-attention in O(reach n E): a block of queries meets the keys that any of them may reach.

    Positions are 0, 1, 2 ... All rows stand behind each other as one text, so that keys and values are copied once.
    """
    batch, _, n, _ = query.shape
    reach, causal, keep = band
    assert reach is not None, "a window has a width"
    before, after = min(reach, n), 0 if causal else min(reach, n)
    if keep is None and not dropout and is_flash(query, value):
        return _local(query, key, value, scale=scale, window=(before, after))
    block = min(max(reach, BLOCK), n)
    count = -(-n // block)  # blocks in a row
    q = _one_text(query, count * block).unflatten(0, (-1, block))
    k, v = (_reached(_one_text(x, count * block), block, before, after).mT for x in (key, value))
    inside, seen = (torch.arange(size, device=query.device) for size in (block, before + block + after))
    away = seen - before - inside[:, None]
    places = torch.arange(count, device=query.device)[:, None] * block - before + seen
    real = ((places >= 0) & (places < n)).repeat(batch, 1)  # (blocks, keys)
    if keep is not None:
        real = real & _reached(F.pad(keep, (0, count * block - n)).flatten(), block, before, after)
    allowed = masks.dense((away >= -before) & (away <= after) & real[:, None])
    # (blocks, H, block, E)
    y = fused(q.transpose(1, 2), k, v, scale=scale, mask=allowed, q_pos=inside[None], k_pos=seen[None], dropout=dropout)
    return y.transpose(1, 2).flatten(0, 1).unflatten(0, (batch, -1))[:, :n].transpose(1, 2)


def _one_text(x: Float[Tensor, "B H N E"], length: int) -> Float[Tensor, "M H E"]:
    """All rows, each filled up to a length, one behind the other."""
    rows = x.transpose(1, 2)
    return (F.pad(rows, (0, 0, 0, 0, 0, length - x.shape[2])) if length > x.shape[2] else rows).flatten(0, 1)


def _reached(x: Shaped[Tensor, "M ..."], block: int, before: int, after: int) -> Shaped[Tensor, "W ... K"]:
    """For each block of positions these and those before and after it, as a view."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (before, after)).unfold(0, before + block + after, block)


def is_flash(query: Float[Tensor, "B H N E"], value: Float[Tensor, "B H N Ev"]) -> bool:
    """Whether flash attention can take these: half precision on a GPU that has it."""
    fits = query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] == value.shape[-1] <= WIDEST
    return fits and query.device.type == "cuda" and torch.cuda.get_device_properties(query.device).major >= 8


def _local(query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: tuple[int, int]) -> Tensor:
    """Flash attention with a window; tiles that no query reaches are not computed."""
    from torch.nn.attention.varlen import varlen_attn

    batch, _, n, _ = query.shape
    offsets = torch.arange(0, batch * n + 1, n, dtype=torch.int32, device=query.device)
    q, k, v = (_one_text(x, n) for x in (query, key, value))
    y = varlen_attn(q, k, v, offsets, offsets, n, n, scale=scale, window_size=window)
    assert isinstance(y, Tensor)  # nothing but the output was asked for
    return y.unflatten(0, (batch, n)).transpose(1, 2)


def window_of(mask: Mask | None) -> Band | None:
    """The band of a mask that is a window, alone or with causal and padding masks; otherwise None."""
    band = None if mask is None else mask.band()
    return None if band is None or band.reach is None else band
