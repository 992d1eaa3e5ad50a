"""Which tokens may be written next, and the best of them: everything that decides it is on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Best(NamedTuple):
    """The best tokens that may be written, best first, and the log of the sum over the whole vocabulary."""

    values: Float[Tensor, "R k"]  # logits
    tokens: Int[Tensor, "R k"]
    log_totals: Float[Tensor, " R"]


@dataclass(frozen=True)
class Rules:
    """What an output must begin with, how short and how long it may be, and what is never written."""

    step: Int[Tensor, " 1"]  # how many tokens every row has written
    least: Int[Tensor, " 1"]  # no END before so many
    limits: Int[Tensor, " N"]  # only END after so many, for each sentence
    prefix: Int[Tensor, " T"]  # the token that must come at each place, -1 where any may
    never: Int[Tensor, " V"]  # 1 for tokens that are no text
    end: int

    def first(self, sentences: int) -> "Rules":
        return Rules(self.step, self.least, self.limits[:sentences], self.prefix, self.never, self.end)

    def apply(self, logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """The logits with -inf for what may not be written."""
        tokens = torch.arange(logits.shape[1], device=logits.device)
        may_end = self.step >= self.least
        free = (self.never == 0) & ((tokens != self.end) | may_end)
        beams = logits.shape[0] // self.limits.shape[0]
        full = (self.limits <= self.step)[:, None].expand(-1, beams).flatten()
        forced = torch.where(full, self.end, self.prefix.index_select(0, self.step))[:, None]
        return logits.masked_fill(~torch.where(forced >= 0, tokens == forced, free), -torch.inf)


def best_tokens(logits: Float[Tensor, "R V"], rules: Rules, count: int) -> Best:
    """The reference: holds the logits of the whole vocabulary."""
    logits = logits.float()
    allowed = rules.apply(logits)
    if count == 1:  # of equal ones the smaller, which topk does not promise
        tokens = allowed.argmax(-1, keepdim=True)
        return Best(allowed.gather(1, tokens), tokens, logits.logsumexp(-1))
    tokens = allowed.topk(count, sorted=False).indices.sort(dim=1).values
    values, order = allowed.gather(1, tokens).sort(dim=1, descending=True, stable=True)
    return Best(values, tokens.gather(1, order), logits.logsumexp(-1))
