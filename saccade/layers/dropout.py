"""Dropout (Srivastava et al. 2014) whose masks are cheap on a CPU."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

BITS = 16  # of randomness for each number: a share is rounded to the next 1/65536
BITS_OF_A_DRAW = 64


class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU, where drawing number by number is a twentieth of a training step, one draw serves four."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if x.device.type != "cpu" or not self.training or not self.p:
            return super().forward(x)
        return x * noise_like(x, self.p)


class DropRows(nn.Module):
    """Whole rows of a batch become 0, and the others so much larger that their mean stays (Huang et al. 2016)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if not self.training:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) >= self.share
        return x * (kept / (1 - self.share)).to(x.dtype)


def noise_like(x: Float[Tensor, "..."], share: float) -> Float[Tensor, "..."]:
    """0 for this share of the numbers and 1 / (1 - share) for the others, each drawn by itself."""
    limit = round(share * 2**BITS)
    each = BITS_OF_A_DRAW // BITS
    words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // each),))
    drawn = words.view(torch.int16)[: x.numel()].view(x.shape)  # every int16 is as likely as any other
    kept = torch.ge(drawn, limit - 2 ** (BITS - 1), out=torch.empty_like(x, memory_format=torch.contiguous_format))
    return kept.mul_(1 / (1 - limit / 2**BITS))
