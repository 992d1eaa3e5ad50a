"""How likely a given output is to a model."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.data.batch import Batch
from saccade.data.tokenizers import START
from saccade.model.writers import shift_right

LOGITS = 1024  # positions whose logits are held at once


def token_log_probs(model: Any, batch: Batch) -> Float[Tensor, "B T"]:
    """log P(target token | source, target tokens before it), 0 at padding."""
    target = batch["target"]
    hidden = model.writer(shift_right(target.ids, START), target.mask, model.read(batch))
    values = torch.zeros(target.ids.shape, device=target.ids.device)
    parts = zip(hidden[target.mask].split(LOGITS), target.ids[target.mask].split(LOGITS), strict=True)
    values[target.mask] = torch.cat([_chosen(model.writer.head, states, ids) for states, ids in parts])
    return values


def _chosen(head: Callable[[Tensor], Tensor], states: Tensor, ids: Tensor) -> Tensor:
    logits = head(states).float()
    return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
