"""Hard attention trained with REINFORCE (Xu et al. 2015, section 4.1)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import HardAttention
from saccade.layers.auxiliary import StepAttention
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.terms import Term, compute_log_probs, compute_smoothed_losses

MIN_WEIGHT = 1e-12  # attention weights are clamped to it before the logarithm


def reinforce_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    reward_weight: float = 0.1,
    entropy_weight: float = 0.01,
    baseline_decay: float = 0.9,
    label_smoothing: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy given sampled positions s, and the REINFORCE loss of the attention weights a, for each sequence

    -reward_weight sum_t (sum_{u >= t} (log p(y_u | s) - b)) log a_t(s_t) - entropy_weight sum_t H(a_t),

    per target token, where the baseline b is a moving average of log p(y_u | s). The reward of a sample leaves out the
    tokens before it, which it cannot influence: this reduces the variance of the gradient without bias. In validation
    only the cross-entropy counts.
    """
    target, attention = batch["target"], find_hard_attention(model)
    hidden, aux = model.write(shift_right(target.ids, START), target.mask, model.read(batch))
    log_probs = compute_log_probs(model.writer.head, hidden)
    smoothed, nll = compute_smoothed_losses(log_probs, target.ids, target.mask, label_smoothing)
    count, policy_weight = target.mask.sum(), weight * model.training
    rewards = log_probs.detach().gather(-1, target.ids[..., None])[..., 0] * target.mask
    mean = rewards.sum() / count
    baseline = torch.where(attention.usual == 0, mean, attention.usual)  # 0 before the first batch
    advantages = (rewards - baseline) * target.mask
    sampled_log_probs, entropies = compute_log_probs_and_entropies(aux["attention"])
    policy_loss = -(advantages.flip(1).cumsum(1).flip(1) * sampled_log_probs * target.mask).sum()
    if model.training:
        attention.usual.copy_(baseline_decay * baseline + (1 - baseline_decay) * mean)
    return {
        "next-token": Term(smoothed, count, weight),
        "looks": Term(policy_loss, count, policy_weight * reward_weight),
        "entropy": Term(-(entropies * target.mask).sum(), count, policy_weight * entropy_weight),
        "nll": Term(nll, count, 0.0),
    }


def compute_log_probs_and_entropies(attention: StepAttention) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability of the sampled position of each step (0 where none was), and the entropy of its weights."""
    weights, sampled = attention.weights, attention.sampled_positions
    log_weights = weights.float().clamp(min=MIN_WEIGHT).log()
    log_probs = log_weights.gather(-1, sampled.clamp(min=0)[..., None])[..., 0] * (sampled >= 0)
    return log_probs, -(weights * log_weights).sum(-1)


def find_hard_attention(model: Model) -> HardAttention:
    found = next((part for part in model.modules() if isinstance(part, HardAttention)), None)
    if found is None:
        raise SaccadeError('the objective "reinforce" needs hard attention; set writer.stack.hard_attention = true')
    return found
