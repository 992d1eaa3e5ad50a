"""Cross-entropy over a large vocabulary without storing the logits of all positions.

Rows of hidden states are multiplied with the output matrix chunk by chunk. The loss is a scalar, so that gradients can
already be computed in the forward pass, up to a factor: those of a chunk overwrite its logits, are added to the
gradients of hidden states and output matrix, and free the buffer for the next chunk.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from saccade.layers.attention.backends import HAS_TRITON

# Bytes of the logits of one chunk: on a GPU enough rows for efficient matrix products, on a CPU what fits into a cache.
GPU_CHUNK_BYTES, CPU_CHUNK_BYTES = 2**30, 16 * 2**20
GPU_MEMORY_DIVISOR = 64  # a chunk takes at most 1/64 of a GPU's memory
MIN_CHUNK_ROWS = 64  # matrix products of fewer rows are slow, however large the vocabulary
VOCABULARY_ALIGNMENT = 64  # on a GPU, matrix products are slow for vocabularies that are not a multiple of this


def smoothed_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    keep: Bool[Tensor, " N"],
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of softmax(hidden weight^T), with and without label smoothing, summed over the rows to `keep`.

    The smoothed target distribution is (1 - smoothing) on the target plus smoothing / V on every entry of the
    vocabulary. Only the first sum has gradients. Rows that are not kept may have any finite values.
    """
    smoothed, nll, _ = _compute_sums(hidden[None], weight, targets, keep, LossSettings(smoothing, 0.0))
    return smoothed, nll


def rdrop_cross_entropy(
    hidden: Float[Tensor, "2 N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    keep: Bool[Tensor, " N"],
    smoothing: float,
    kl_weight: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """R-Drop (Liang et al. 2021): cross-entropy over two passes, and the sum of (KL(P1||P2) + KL(P2||P1)) / 2.

    All gradients flow through the first sum: they are those of smoothed + kl_weight * kl. The value of the first sum is
    the smoothed cross-entropy alone, and the other two sums have no gradients.
    """
    return _compute_sums(hidden, weight, targets, keep, LossSettings(smoothing, kl_weight))


class LossSettings(NamedTuple):
    smoothing: float
    kl_weight: float


class Gradients(NamedTuple):
    """Buffers for the gradients of hidden states and output matrix; None where they are not needed."""

    hidden: Tensor | None
    weight: Tensor | None


Sums = tuple[Tensor, Tensor, Tensor]  # smoothed cross-entropy, plain cross-entropy, KL divergence


def _compute_sums(hidden: Tensor, weight: Tensor, targets: Tensor, keep: Tensor, settings: LossSettings) -> Sums:
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        return _WithGradients.apply(hidden, weight, targets, keep, settings)
    return _compute_in_chunks(hidden, weight, targets, keep, settings, Gradients(None, None))


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, keep: Tensor, settings: LossSettings
    ) -> Sums:
        grad_hidden, grad_weight, *_ = ctx.needs_input_grad
        vocabulary, dim = weight.shape
        padded = get_padded_vocabulary(vocabulary, weight.device)
        gradients = Gradients(
            torch.empty_like(hidden, memory_format=torch.contiguous_format) if grad_hidden else None,
            weight.new_zeros(padded, dim, dtype=_get_accumulation_dtype(weight.dtype)) if grad_weight else None,
        )
        smoothed, nll, kl = _compute_in_chunks(hidden, weight, targets, keep, settings, gradients)
        ctx.save_for_backward(*gradients)
        ctx.dtype, ctx.vocabulary = weight.dtype, vocabulary
        ctx.mark_non_differentiable(nll, kl)
        return smoothed, nll, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        grad_hidden = None if hidden is None else hidden * grad_output
        grad_weight = None if weight is None else (weight[: ctx.vocabulary] * grad_output).to(ctx.dtype)
        return grad_hidden, grad_weight, None, None, None


def _compute_in_chunks(
    hidden: Tensor, weight: Tensor, targets: Tensor, keep: Tensor, settings: LossSettings, gradients: Gradients
) -> Sums:
    """The three sums; also fills `gradients`."""
    passes, count, _ = hidden.shape
    vocabulary = weight.shape[0]
    dtype = _get_matmul_dtype(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, targets, keep = hidden.to(dtype), targets.contiguous(), keep.contiguous()
        padded = get_padded_vocabulary(vocabulary, hidden.device)
        weight = weight.to(dtype)
        weight = weight if padded == vocabulary else F.pad(weight, (0, 0, 0, padded - vocabulary))
        rows = get_chunk_rows(
            count, row_bytes=passes * padded * dtype.itemsize, chunk_bytes=get_chunk_bytes(hidden.device)
        )
        buffer = hidden.new_empty(passes, min(rows, count), padded)
        values = hidden.new_empty(3, count, dtype=_get_accumulation_dtype(dtype))
        compute_rows = (
            _load_kernel() if hidden.is_cuda and dtype != torch.float64 and HAS_TRITON else compute_loss_rows_reference
        )
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            logits = buffer[:, : len(targets[part])]
            for states, out in zip(hidden[:, part], logits, strict=True):
                torch.mm(states, weight.T, out=out)
            needs_gradients = any(gradient is not None for gradient in gradients)
            compute_rows(
                logits[..., :vocabulary], targets[part], keep[part], values[:, part], settings, needs_gradients
            )
            _accumulate_gradients(logits, hidden[:, part], weight, part, gradients)
        smoothed, nll, kl = (value.sum() for value in values)
    return smoothed, nll, kl


def _accumulate_gradients(
    grad_logits: Tensor, hidden: Tensor, weight: Tensor, part: slice, gradients: Gradients
) -> None:
    """Backpropagate the gradients of the logits of one chunk to its hidden states and to the output matrix."""
    for number, (grad, states) in enumerate(zip(grad_logits, hidden, strict=True)):
        if gradients.hidden is not None:
            out = gradients.hidden[number, part]
            if out.dtype == grad.dtype:
                torch.mm(grad, weight, out=out)
            elif out.is_cuda:
                torch.mm(grad, weight, out_dtype=out.dtype, out=out)
            else:
                out.copy_(grad @ weight)
        if gradients.weight is not None:
            total = gradients.weight
            if total.dtype == grad.dtype:
                total.addmm_(grad.T, states)
            elif total.is_cuda:
                torch.addmm(total, grad.T, states, out_dtype=total.dtype, out=total)
            else:
                total.add_(grad.T @ states)


def compute_loss_rows_reference(
    logits: Float[Tensor, "P R V"],
    targets: Int[Tensor, " R"],
    keep: Bool[Tensor, " R"],
    values: Float[Tensor, "3 R"],
    settings: LossSettings,
    needs_gradients: bool,
) -> None:
    """Write the three losses of each row to `values` and overwrite the logits with their gradients; the reference."""
    smoothing, kl_weight = settings
    passes, rows, vocabulary = logits.shape
    row_indices = torch.arange(rows, device=targets.device)
    exact = logits.to(values.dtype)
    log_ratio = exact[0] - exact[-1] if passes == 2 else None
    target_logits, mean, top = exact[:, row_indices, targets], exact.mean(-1), exact.amax(-1)
    probs = torch.softmax(exact, -1, out=exact)
    logsumexp = top - probs.amax(-1).log_()  # logsumexp: the largest probability is exp(top - logsumexp)
    nll = (logsumexp - target_logits).sum(0)
    smoothed = (1 - smoothing) * nll + smoothing * (logsumexp - mean).sum(0)
    kl = torch.zeros_like(nll)
    if log_ratio is not None:
        log_ratio -= (logsumexp[0] - logsumexp[1])[:, None]  # log P1 - log P2
        forward_kl = (probs[0] * log_ratio).sum(-1)  # KL(P1 || P2)
        backward_kl = -(probs[1] * log_ratio).sum(-1)  # KL(P2 || P1)
        kl = (forward_kl + backward_kl) / 2
    values.copy_(torch.stack((smoothed, nll, kl)).masked_fill_(~keep, 0.0))
    if not needs_gradients:
        return
    if log_ratio is not None and kl_weight:
        first = probs[0] * (log_ratio + 1 - forward_kl[:, None]) - probs[1]
        second = probs[1] * (1 - log_ratio - backward_kl[:, None]) - probs[0]
        probs.add_(torch.stack((first, second)), alpha=kl_weight / 2)
    grad_logits = probs.sub_(smoothing / vocabulary)
    for grad in grad_logits:
        grad.index_put_((row_indices, targets), grad.new_tensor(smoothing - 1), accumulate=True)
    if keep.is_cuda or not keep.all():  # on a GPU the check would synchronize
        grad_logits.masked_fill_(~keep[:, None], 0.0)
    if grad_logits.dtype != logits.dtype:
        logits.copy_(grad_logits)


def get_padded_vocabulary(vocabulary: int, device: torch.device) -> int:
    """The vocabulary size that matrix products use; additional rows of the matrix, and their logits, are zero."""
    return -(-vocabulary // VOCABULARY_ALIGNMENT) * VOCABULARY_ALIGNMENT if device.type == "cuda" else vocabulary


def get_chunk_bytes(device: torch.device) -> int:
    """Bytes of the logits of one chunk."""
    if device.type != "cuda":
        return CPU_CHUNK_BYTES
    return min(GPU_CHUNK_BYTES, torch.cuda.get_device_properties(device).total_memory // GPU_MEMORY_DIVISOR)


def get_chunk_rows(count: int, *, row_bytes: int, chunk_bytes: int) -> int:
    """Rows of one chunk, a multiple of 16, such that all chunks have about the same size."""
    max_rows = max(chunk_bytes // row_bytes, MIN_CHUNK_ROWS)
    chunks = max(-(-count // max_rows), 1)
    return max(-(-count // (16 * chunks)), 1) * 16


def _get_matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear layer would compute."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def _get_accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for sums over many elements."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_loss_dtype(x: Tensor) -> Tensor:
    """Convert logits or predictions to float32, in which losses are computed; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def _load_kernel() -> Any:
    from saccade.kernels.triton.loss import compute_loss_rows

    return compute_loss_rows
