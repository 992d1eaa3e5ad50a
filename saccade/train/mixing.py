"""Pictures that are made of two, and share the classes of both in the same measure."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.batch import Batch, Pictures


def mixed(
    batch: Batch, generator: torch.Generator, *, mixup: float, cutmix: float
) -> tuple[Batch, Int[Tensor, " B"], Float[Tensor, ""]]:
    """The batch with each picture mixed with another, the number of that one, and the share of the first.

    Both are mixed as a whole (Zhang et al. 2018), or a rectangle comes from the other one (Yun et al. 2019); where both
    are wanted, one of the two is drawn for each batch.
    """
    pictures = batch["source"]
    x = pictures.values.float()
    others = torch.randperm(len(x), generator=generator, device=x.device)
    cuts = bool(cutmix) and (not mixup or float(torch.rand((), generator=generator, device=x.device)) < 0.5)
    share = beta(cutmix if cuts else mixup, generator)
    if cuts:
        inside = rectangle(x.shape[-2], x.shape[-1], 1 - share, generator)
        x = torch.where(inside, x[others], x)
        share = 1 - inside.float().mean()
    else:
        x = share * x + (1 - share) * x[others]
    return Batch({**batch.fields, "source": Pictures(x, pictures.mask)}, batch.counts), others, share


def beta(alpha: float, generator: torch.Generator) -> Float[Tensor, ""]:
    """A draw of Beta(a, a) as x / (x + y) of two draws of Gamma(a, 1)."""
    rates = torch.full((2,), alpha, device=generator.device)
    first, second = torch._standard_gamma(rates, generator=generator)
    return first / (first + second).clamp(min=1e-12)


def rectangle(high: int, wide: int, share: Tensor, generator: torch.Generator) -> Tensor:
    """(high, wide) bool: this share of a picture, as far as it does not reach over its edge, anywhere in it."""
    side = share.sqrt() / 2
    middle = torch.rand(2, generator=generator, device=generator.device)
    down, across = (
        ((torch.arange(length, device=generator.device) + 0.5) / length - middle[axis]).abs() <= side
        for axis, length in enumerate((high, wide))
    )
    return down[:, None] & across[None, :]
