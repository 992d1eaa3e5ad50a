"""Cross-entropy over a vocabulary without ever holding the logits of all positions.

Rows of hidden states go through the output matrix piece by piece. In the backward pass one number comes back from
above, so the gradients of a piece can be computed while its logits are there: they are written over them, go into the
gradients of hidden states and matrix, and leave the room to the next piece.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from saccade.layers.attention.backends import TRITON

# Bytes of the logits of one piece: on a GPU enough rows for its matrix products, elsewhere what a cache may hold.
PIECE_ON_GPU, PIECE = 2**30, 16 * 2**20
SHARE = 64  # of a GPU's memory, the part that a piece may take at most
FEWEST_ROWS = 64  # below it matrix products are slow, however large the vocabulary
ALIGNED = 64  # entries: a GPU's products are slow for vocabularies of other sizes


def smoothed_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    keep: Bool[Tensor, " N"],
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums over kept rows of the cross-entropy of softmax(hidden weight^T), smoothed and plain.

    The target distribution is (1 - smoothing) on the token plus smoothing / V on every entry of the vocabulary. Only
    the first sum has gradients. A row that is not kept may hold anything finite and adds nothing.
    """
    smoothed, nll, _ = _sums(hidden[None], weight, targets, keep, Settings(smoothing, 0.0))
    return smoothed, nll


def twofold_cross_entropy(
    hidden: Float[Tensor, "2 N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    keep: Bool[Tensor, " N"],
    smoothing: float,
    apart_weight: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """The same over two passes of one text, and how far apart they are: the sum of (KL(P1||P2) + KL(P2||P1)) / 2.

    All gradients flow through the first sum: they are those of smoothed + apart_weight * apart. The value of the first
    sum is the smoothed cross-entropy alone, and the other two have no gradients.
    """
    return _sums(hidden, weight, targets, keep, Settings(smoothing, apart_weight))


class Settings(NamedTuple):
    smoothing: float
    apart_weight: float


class Gradients(NamedTuple):
    """Where the gradients of hidden states and matrix are gathered; None where nobody asks."""

    hidden: Tensor | None
    weight: Tensor | None


Sums = tuple[Tensor, Tensor, Tensor]  # smoothed, plain, apart


def _sums(hidden: Tensor, weight: Tensor, targets: Tensor, keep: Tensor, settings: Settings) -> Sums:
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        return _WithGradients.apply(hidden, weight, targets, keep, settings)
    return _in_pieces(hidden, weight, targets, keep, settings, Gradients(None, None))


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, keep: Tensor, settings: Settings) -> Sums:
        of_hidden, of_weight, *_ = ctx.needs_input_grad
        vocabulary, dim = weight.shape
        width = width_of_products(vocabulary, weight.device)
        gradients = Gradients(
            torch.empty_like(hidden, memory_format=torch.contiguous_format) if of_hidden else None,
            weight.new_zeros(width, dim, dtype=_wide(weight.dtype)) if of_weight else None,
        )
        smoothed, nll, apart = _in_pieces(hidden, weight, targets, keep, settings, gradients)
        ctx.save_for_backward(*gradients)
        ctx.kind, ctx.vocabulary = weight.dtype, vocabulary
        ctx.mark_non_differentiable(nll, apart)
        return smoothed, nll, apart

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        of_hidden = None if hidden is None else hidden * above
        of_weight = None if weight is None else (weight[: ctx.vocabulary] * above).to(ctx.kind)
        return of_hidden, of_weight, None, None, None


def _in_pieces(
    hidden: Tensor, weight: Tensor, targets: Tensor, keep: Tensor, settings: Settings, gradients: Gradients
) -> Sums:
    """The three sums; gradients are written into `gradients` on the way."""
    passes, count, _ = hidden.shape
    vocabulary = weight.shape[0]
    kind = _product_type(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, targets, keep = hidden.to(kind), targets.contiguous(), keep.contiguous()
        width = width_of_products(vocabulary, hidden.device)
        weight = weight.to(kind)
        weight = weight if width == vocabulary else F.pad(weight, (0, 0, 0, width - vocabulary))
        rows = rows_at_once(count, row_bytes=passes * width * kind.itemsize, room=room_for_piece(hidden.device))
        room = hidden.new_empty(passes, min(rows, count), width)
        values = hidden.new_empty(3, count, dtype=_wide(kind))
        turn = _turn_by_kernel() if hidden.is_cuda and kind != torch.float64 and TRITON else turn_plainly
        for first in range(0, count, rows):
            part = slice(first, first + rows)
            logits = room[:, : len(targets[part])]
            for states, out in zip(hidden[:, part], logits, strict=True):
                torch.mm(states, weight.T, out=out)
            wanted = any(gradient is not None for gradient in gradients)
            turn(logits[..., :vocabulary], targets[part], keep[part], values[:, part], settings, wanted)
            _gather(logits, hidden[:, part], weight, part, gradients)
        smoothed, nll, apart = (value.sum() for value in values)
    return smoothed, nll, apart


def _gather(slopes: Tensor, hidden: Tensor, weight: Tensor, part: slice, gradients: Gradients) -> None:
    """Gradients of the logits of one piece become those of its hidden states and a share of the matrix's."""
    for number, (slope, states) in enumerate(zip(slopes, hidden, strict=True)):
        if gradients.hidden is not None:
            out = gradients.hidden[number, part]
            if out.dtype == slope.dtype:
                torch.mm(slope, weight, out=out)
            elif out.is_cuda:
                torch.mm(slope, weight, out_dtype=out.dtype, out=out)
            else:
                out.copy_(slope @ weight)
        if gradients.weight is not None:
            total = gradients.weight
            if total.dtype == slope.dtype:
                total.addmm_(slope.T, states)
            elif total.is_cuda:
                torch.addmm(total, slope.T, states, out_dtype=total.dtype, out=total)
            else:
                total.add_(slope.T @ states)


def turn_plainly(
    logits: Float[Tensor, "P R V"],
    targets: Int[Tensor, " R"],
    keep: Bool[Tensor, " R"],
    values: Float[Tensor, "3 R"],
    settings: Settings,
    wanted: bool,
) -> None:
    """Writes the values of each row, and the gradients over the logits where they are wanted: the reference."""
    smoothing, apart_weight = settings
    passes, rows, vocabulary = logits.shape
    at = torch.arange(rows, device=targets.device)
    wide = logits.to(values.dtype)
    away = wide[0] - wide[-1] if passes == 2 else None
    chosen, mean, top = wide[:, at, targets], wide.mean(-1), wide.amax(-1)
    likely = torch.softmax(wide, -1, out=wide)
    norm = top - likely.amax(-1).log_()  # log of the sum of exponentials: the likeliest has the probability 1 / sum
    nll = (norm - chosen).sum(0)
    smoothed = (1 - smoothing) * nll + smoothing * (norm - mean).sum(0)
    apart = torch.zeros_like(nll)
    if away is not None:
        away -= (norm[0] - norm[1])[:, None]  # log P1 - log P2
        there, back = (likely[0] * away).sum(-1), -(likely[1] * away).sum(-1)  # KL(P1 || P2), KL(P2 || P1)
        apart = (there + back) / 2
    values.copy_(torch.stack((smoothed, nll, apart)).masked_fill_(~keep, 0.0))
    if not wanted:
        return
    if away is not None and apart_weight:
        first = likely[0] * (away + 1 - there[:, None]) - likely[1]
        second = likely[1] * (1 - away - back[:, None]) - likely[0]
        likely.add_(torch.stack((first, second)), alpha=apart_weight / 2)
    slopes = likely.sub_(smoothing / vocabulary)
    for slope in slopes:
        slope.index_put_((at, targets), slope.new_tensor(smoothing - 1), accumulate=True)
    if keep.is_cuda or not keep.all():  # a GPU is not asked: it would have to be waited for
        slopes.masked_fill_(~keep[:, None], 0.0)
    if slopes.dtype != logits.dtype:
        logits.copy_(slopes)


def width_of_products(vocabulary: int, device: torch.device) -> int:
    """Entries that products compute: beyond the vocabulary the matrix, hence logits and their gradients, are zero."""
    return -(-vocabulary // ALIGNED) * ALIGNED if device.type == "cuda" else vocabulary


def room_for_piece(device: torch.device) -> int:
    """Bytes of the logits of one piece."""
    if device.type != "cuda":
        return PIECE
    return min(PIECE_ON_GPU, torch.cuda.get_device_properties(device).total_memory // SHARE)


def rows_at_once(count: int, *, row_bytes: int, room: int) -> int:
    """How many of all rows one piece has, a multiple of 16, so that pieces are about equally large."""
    most = max(room // row_bytes, FEWEST_ROWS)
    pieces = max(-(-count // most), 1)
    return max(-(-count // (16 * pieces)), 1) * 16


def _product_type(x: Tensor) -> torch.dtype:
    """What a linear layer would compute in here."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def _wide(kind: torch.dtype) -> torch.dtype:
    """What many numbers of this type are summed up in."""
    return torch.float64 if kind == torch.float64 else torch.float32


def _turn_by_kernel() -> Any:
    from saccade.kernels.triton.loss import turn

    return turn
