"""Selection of the next tokens under decoding constraints, all of which are tensors on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class TopTokens(NamedTuple):
    """The best allowed tokens of each row, best first, and the logsumexp over the whole vocabulary."""

    values: Float[Tensor, "R k"]  # logits
    tokens: Int[Tensor, "R k"]
    log_totals: Float[Tensor, " R"]


@dataclass(frozen=True)
class DecodingConstraints:
    """Forced prefix, minimum and maximum length, and suppressed tokens of outputs."""

    step: Int[Tensor, " 1"]  # tokens that every row has generated
    min_length: Int[Tensor, " 1"]  # END is not allowed before
    max_lengths: Int[Tensor, " N"]  # of each sentence: only END is allowed afterwards
    forced_prefix: Int[Tensor, " T"]  # the token that is forced at each position, -1 for none
    suppressed: Int[Tensor, " V"]  # 1 for tokens that are never generated
    end_id: int

    def select_first(self, sentences: int) -> "DecodingConstraints":
        return DecodingConstraints(
            self.step, self.min_length, self.max_lengths[:sentences], self.forced_prefix, self.suppressed, self.end_id
        )

    def mask_logits(self, logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """The logits with -inf for tokens that are not allowed."""
        tokens = torch.arange(logits.shape[1], device=logits.device)
        may_end = self.step >= self.min_length
        free = (self.suppressed == 0) & ((tokens != self.end_id) | may_end)
        beams = logits.shape[0] // self.max_lengths.shape[0]
        full = (self.max_lengths <= self.step)[:, None].expand(-1, beams).flatten()
        forced = torch.where(full, self.end_id, self.forced_prefix.index_select(0, self.step))[:, None]
        return logits.masked_fill(~torch.where(forced >= 0, tokens == forced, free), -torch.inf)


def select_top_tokens(logits: Float[Tensor, "R V"], constraints: DecodingConstraints, count: int) -> TopTokens:
    """Reference implementation, with the logits of the whole vocabulary."""
    logits = logits.float()
    allowed = constraints.mask_logits(logits)
    if count == 1:  # ties go to the smaller token, which topk does not guarantee
        tokens = allowed.argmax(-1, keepdim=True)
        return TopTokens(allowed.gather(1, tokens), tokens, logits.logsumexp(-1))
    tokens = allowed.topk(count, sorted=False).indices.sort(dim=1).values
    values, order = allowed.gather(1, tokens).sort(dim=1, descending=True, stable=True)
    return TopTokens(values, tokens.gather(1, order), logits.logsumexp(-1))
