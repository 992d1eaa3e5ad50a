"""Cross-entropy with an output layer that is split over processes by tokens (Shoeybi et al. 2019, section 3).

Each process computes the logits of its own tokens; only sums over the vocabulary, one number per row, are exchanged.
`torch.distributed.tensor.parallel.loss_parallel` does the same, but without label smoothing and divergence.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from saccade.train.objectives.terms import MIN_OUTPUT_BIAS


def compute_split_losses(
    output: Any,
    rows: Float[Tensor, "P N D"],
    ids: Int[Tensor, " N"],
    keep: Bool[Tensor, " N"],
    smoothing: float,
    kl_weight: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """The three sums of `rdrop_cross_entropy`, for an output layer whose weights are DTensors split by tokens.

    All processes have all rows and get the same sums. With a single pass, the third is 0.
    """
    mesh = output.weight.device_mesh
    whole = DTensor.from_local(rows, mesh, [Replicate()], run_check=False)
    logits = F.linear(whole, output.weight, output.bias).to_local()  # type: ignore[attr-defined]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    top = reduce(logits.detach().amax(-1), mesh, "max")
    logsumexp = reduce((logits - top[..., None]).exp().sum(-1), mesh).log() + top
    nll = logsumexp - reduce(pick_targets(logits, ids.expand(len(rows), -1), mesh, len(output.weight)), mesh)
    smoothed = nll
    if smoothing:
        exists = torch.ones_like(logits[0, 0]) if output.bias is None else output.bias.to_local() > MIN_OUTPUT_BIAS
        count = reduce(exists.to(logits.dtype).sum(), mesh)
        mean = reduce((logits * exists).sum(-1), mesh) / count
        smoothed = (1 - smoothing) * nll + smoothing * (logsumexp - mean)
    total, kl = (smoothed * keep).sum(), torch.zeros_like(top[0, 0])
    if len(rows) == 2:
        log_probs = logits - share(logsumexp, mesh)[..., None]
        difference, log_ratio = log_probs[0].exp() - log_probs[1].exp(), log_probs[0] - log_probs[1]
        kl = (reduce((difference * log_ratio).sum(-1), mesh) * keep).sum() / 2
        total = total + kl_weight * (kl - kl.detach())  # the first sum carries the gradients of the divergence
    return total, (nll.detach() * keep).sum(), kl.detach()


def reduce(x: Tensor, mesh: DeviceMesh, operation: str = "sum") -> Tensor:
    """Combine a tensor of each process; all get the result."""
    partial = DTensor.from_local(x, mesh, [Partial(operation)], run_check=False)
    return partial.redistribute(placements=[Replicate()]).to_local()


def share(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """A tensor that all processes have and each uses for its own part, so that its gradient is the sum of theirs."""
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def pick_targets(
    logits: Float[Tensor, "P N v"], ids: Int[Tensor, "P N"], mesh: DeviceMesh, vocabulary: int
) -> Float[Tensor, "P N"]:
    """The logits of target tokens that this process has, and 0 for all others."""
    first = mesh.get_local_rank() * -(-vocabulary // mesh.size())
    local = ids - first
    is_here = (local >= 0) & (local < logits.shape[-1])
    picked = logits.gather(-1, local.clamp(0, logits.shape[-1] - 1)[..., None])[..., 0]
    return torch.where(is_here, picked, 0.0)
