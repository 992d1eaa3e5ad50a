"""A CTC head on the reader: a token or the blank for each state (Graves et al. 2006)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.data.batching.batch import Tokens
from saccade.data.tokenization.tokenizer import PAD
from saccade.layers.losses.cross_entropy import to_loss_dtype
from saccade.layers.losses.ctc import force_blank_padding
from saccade.layers.memory import Memory

BLANK = PAD  # never occurs inside a sequence


class CtcHead(nn.Module):
    """Trained jointly with an attention decoder, it encourages monotonic alignment (Watanabe et al. 2017)."""

    def __init__(self, dim: int, *, size: int) -> None:
        super().__init__()
        self.output = nn.Linear(dim, size)

    def forward(self, memory: Memory) -> Float[Tensor, "B S V"]:
        """Log-probabilities of all tokens and the blank; padding has the blank with probability 1."""
        return force_blank_padding(to_loss_dtype(self.output(memory.states)).log_softmax(-1), memory.padding, BLANK)

    def loss(self, memory: Memory, target: Tokens) -> Float[Tensor, ""]:
        """Sum over rows of -log P(target without END); 0 for targets that are too long for the number of states."""
        log_probs = to_loss_dtype(self.output(memory.states)).log_softmax(-1)
        with torch.autocast(log_probs.device.type, enabled=False):
            return F.ctc_loss(
                log_probs.transpose(0, 1), target.ids, memory.padding.sum(1), (target.mask.sum(1) - 1).clamp(min=0),
                blank=BLANK, reduction="sum", zero_infinity=True,
            )  # fmt: skip
