"""Looks that are drawn, and learn by how likely the text became after them (Xu et al. 2015, section 4.1)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.batching.batch import Batch
from saccade.data.tokenization.tokenizers import START
from saccade.errors import SaccadeError
from saccade.layers.attention.alignment import HardLook
from saccade.layers.auxiliary import StepAttention
from saccade.model.model import Model
from saccade.model.writers.tokens import shift_right
from saccade.train.objectives.terms import Term, log_probabilities, smoothed_from

TINY = 1e-12  # below which the logarithm of a weight is not asked for


def reinforce(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    reward: float = 0.1,
    entropy: float = 0.01,
    decay: float = 0.9,
    smoothing: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy given looks s that were drawn, and what is learned of the looks themselves, for each text

    -reward sum over t of (sum over u >= t of (log p(y_u | s) - b)) log a_t(s_t) - entropy sum over t of H(a_t),

    where b is the moving average of log p(y_u | s); all of it per target token, as the cross-entropy is. Tokens before
    a look owe nothing to it, so that leaving them out changes no gradient in the mean, but makes it less random. In
    validation the cross-entropy alone is the loss: the rest has a use for its gradient only.
    """
    target, look = batch["target"], hard_look(model)
    hidden, aux = model.write(shift_right(target.ids, START), target.mask, model.read(batch))
    logs = log_probabilities(model.writer.head, hidden)
    smoothed, nll = smoothed_from(logs, target.ids, target.mask, smoothing)
    count, teaches = target.mask.sum(), weight * model.training
    likely = logs.detach().gather(-1, target.ids[..., None])[..., 0] * target.mask
    mean = likely.sum() / count
    usual = torch.where(look.usual == 0, mean, look.usual)  # of the first texts nothing is known yet
    gain = (likely - usual) * target.mask
    drawn, spread = logs_and_entropies(aux["attention"])
    climb = -(gain.flip(1).cumsum(1).flip(1) * drawn * target.mask).sum()
    if model.training:
        look.usual.copy_(decay * usual + (1 - decay) * mean)
    return {
        "next-token": Term(smoothed, count, weight),
        "looks": Term(climb, count, teaches * reward),
        "entropy": Term(-(spread * target.mask).sum(), count, teaches * entropy),
        "nll": Term(nll, count, 0.0),
    }


def logs_and_entropies(attention: StepAttention) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Of each step, the log-probability of the position that was sampled, 0 where none was, and the entropy."""
    weights, sampled = attention.weights, attention.sampled
    logs = weights.float().clamp(min=TINY).log()
    drawn = logs.gather(-1, sampled.clamp(min=0)[..., None])[..., 0] * (sampled >= 0)
    return drawn, -(weights * logs).sum(-1)


def hard_look(model: Model) -> HardLook:
    found = next((part for part in model.modules() if isinstance(part, HardLook)), None)
    if found is None:
        raise SaccadeError('the objective "reinforce" learns looks that are drawn; set writer.stack.hard = true')
    return found
