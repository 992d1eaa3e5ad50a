"""A second writer over the same reader: a letter, or nothing, for each state (Graves et al. 2006)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.data.batching.batch import Tokens
from saccade.data.tokenization.tokenizer import PAD
from saccade.layers.losses.ctc import silent_padding
from saccade.layers.memory import Memory

BLANK = PAD  # which no text has inside


class CtcHead(nn.Module):
    """Beside a writer that attends, it keeps both in time with the sound (Watanabe et al. 2017)."""

    def __init__(self, dim: int, *, size: int) -> None:
        super().__init__()
        self.output = nn.Linear(dim, size)

    def forward(self, memory: Memory) -> Float[Tensor, "B S V"]:
        """Log-probabilities of every letter and of the blank; padding is surely blank."""
        return silent_padding(self.output(memory.states).float().log_softmax(-1), memory.padding, BLANK)

    def loss(self, memory: Memory, target: Tokens) -> Float[Tensor, ""]:
        """-log P(text) summed over rows, END not counted; of texts too long for their states it is left out."""
        log_probs = self.output(memory.states).float().log_softmax(-1)
        with torch.autocast(log_probs.device.type, enabled=False):
            return F.ctc_loss(
                log_probs.transpose(0, 1), target.ids, memory.padding.sum(1), (target.mask.sum(1) - 1).clamp(min=0),
                blank=BLANK, reduction="sum", zero_infinity=True,
            )  # fmt: skip
