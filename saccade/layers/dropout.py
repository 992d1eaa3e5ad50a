"""Dropout (Srivastava et al. 2014) with masks that are cheap to sample on a CPU, and stochastic depth."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

RANDOM_BITS = 16  # per element: the probability is rounded to a multiple of 1/65536
WORD_BITS = 64  # of one random integer


class Dropout(nn.Dropout):
    """nn.Dropout, with a faster mask on a CPU: one random integer serves four elements."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if x.device.type != "cpu" or not self.training or not self.p:
            return super().forward(x)
        return x * make_dropout_mask(x, self.p)


class DropPath(nn.Module):
    """Stochastic depth: zeroes whole rows of a batch in training and rescales the others (Huang et al. 2016)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if not self.training:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.probability
        return x * (keep / (1 - self.probability)).to(x.dtype)


def make_dropout_mask(x: Float[Tensor, "..."], probability: float) -> Float[Tensor, "..."]:
    """A dropout mask: independently for each element 0 with this probability, else 1 / (1 - probability)."""
    limit = round(probability * 2**RANDOM_BITS)
    per_word = WORD_BITS // RANDOM_BITS
    words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // per_word),))
    random = words.view(torch.int16)[: x.numel()].view(x.shape)  # uniform over all int16
    keep = torch.ge(
        random, limit - 2 ** (RANDOM_BITS - 1), out=torch.empty_like(x, memory_format=torch.contiguous_format)
    )
    return keep.mul_(1 / (1 - limit / 2**RANDOM_BITS))
