"""Hard attention trained with REINFORCE (Xu et al. 2015, section 4.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.config.schema import Reinforce
from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import HardAttention
from saccade.layers.auxiliary import StepAttention
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.terms import Term, compute_log_probs, compute_smoothed_losses

DEFAULT_SETTINGS = Reinforce()
MIN_WEIGHT = 1e-12  # attention weights are clamped to it before the logarithm


class Copies(NamedTuple):
    """How an example is copied for one pass: R rows of B examples, with sampled or with soft attention."""

    per_example: int  # copies of each example, which stand one after the other
    is_soft: Bool[Tensor, "R 1"]
    weights: Float[Tensor, "R 1"]  # of the copies of an example; their sum is 1


def reinforce_loss(
    model: Model, batch: Batch, generator: torch.Generator, *, settings: Reinforce = DEFAULT_SETTINGS
) -> dict[str, Term]:
    """Cross-entropy given sampled positions s, and the REINFORCE loss of the attention weights a, for each sequence

    -reward_weight sum_t (sum_{u >= t} log p(y_u | s) - b_t) log a_t(s_t) - entropy_weight sum_t H(a_t),

    per target token. The reward of a sample leaves out the tokens before it, which it cannot influence. With one sample
    the baseline b_t is a moving average of log p(y_u | s) for each token u >= t. With several it is the mean reward of
    the other samples of the same sequence, the leave-one-out baseline (RLOO, Kool et al. 2019). Both reduce the
    variance of the gradient without bias. A share `soft_rate` of the loss is that of soft attention. In validation only
    the cross-entropy of hard attention counts.
    """
    target, memory, attention = batch["target"], model.read(batch), find_hard_attention(model)
    samples, soft_rate = (settings.samples, settings.soft_rate) if model.training else (1, 0.0)
    copies = plan_copies(len(target.ids), samples=samples, soft_rate=soft_rate, like=memory.states)
    ids, mask = (x.repeat_interleave(copies.per_example, 0) for x in (target.ids, target.mask))
    memory = memory if copies.per_example == 1 else memory.repeat_rows(copies.per_example)
    hidden, aux = model.write(shift_right(ids, START), mask, replace(memory, soft_rows=copies.is_soft))
    log_probs, token_weights = compute_log_probs(model.writer.head, hidden), mask * copies.weights
    smoothed, nll = compute_smoothed_losses(log_probs, ids, token_weights, settings.label_smoothing)
    rewards = log_probs.detach().gather(-1, ids[..., None])[..., 0] * mask
    if samples > 1:
        advantages = compute_leave_one_out_advantages(sum_from_each_step(rewards), samples, copies.per_example)
    else:
        baseline = update_baseline(attention, rewards.sum() / mask.sum(), decay=settings.baseline_decay)
        advantages = sum_from_each_step((rewards - baseline) * mask)
    log_weights, entropies = compute_log_probs_and_entropies(aux["attention"])
    count, weight, policy_weight = target.mask.sum(), settings.weight, settings.weight * model.training
    return {
        "next-token": Term(smoothed, count, weight),
        "looks": Term(-(advantages * log_weights * token_weights).sum(), count, policy_weight * settings.reward_weight),
        "entropy": Term(-(entropies * token_weights).sum(), count, policy_weight * settings.entropy_weight),
        "nll": Term(nll, count, 0.0),
    }


def update_baseline(attention: HardAttention, mean: Float[Tensor, ""], *, decay: float) -> Float[Tensor, ""]:
    """Return the moving average of rewards before this batch, whose mean is added to it in training."""
    baseline = torch.where(attention.usual == 0, mean, attention.usual)  # 0 before the first batch
    if attention.training:
        attention.usual.copy_(decay * baseline + (1 - decay) * mean)
    return baseline


def plan_copies(rows: int, *, samples: int, soft_rate: float, like: Tensor) -> Copies:
    """One copy of each example, which uses soft attention with probability `soft_rate` (Xu et al. 2015, section 4.1).

    With several samples there is a copy for each of them, and one with soft attention whose weight is `soft_rate`: the
    expectation over that choice in place of a sample of it.
    """
    if samples == 1:
        is_soft = torch.rand(rows, 1, device=like.device) < soft_rate
        return Copies(1, is_soft, torch.ones_like(is_soft, dtype=torch.float))
    kinds = [False] * samples + [True] * (soft_rate > 0)
    is_soft = torch.tensor(kinds * rows, device=like.device)[:, None]
    return Copies(len(kinds), is_soft, torch.where(is_soft, soft_rate, (1 - soft_rate) / samples))


def sum_from_each_step(values: Float[Tensor, "R T"]) -> Float[Tensor, "R T"]:
    """Sum over the steps u >= t, for each t."""
    return values.flip(1).cumsum(1).flip(1)


def compute_leave_one_out_advantages(rewards: Float[Tensor, "R T"], samples: int, copies: int) -> Float[Tensor, "R T"]:
    """Reward of each sample minus the mean reward of the other samples of the same example; 0 with soft attention."""
    sampled = rewards.unflatten(0, (-1, copies))[:, :samples]
    others = (sampled.sum(1, keepdim=True) - sampled) / (samples - 1)
    return F.pad(sampled - others, (0, 0, 0, copies - samples)).flatten(0, 1)


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
