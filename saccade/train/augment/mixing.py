"""Pictures that are made of two, and share the classes of both in the same measure."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Pictures


def mixed(
    batch: Batch, generator: torch.Generator, *, mixup: float, cutmix: float
) -> tuple[Batch, Int[Tensor, " B"], Float[Tensor, ""]]:
    """The batch with each picture mixed with another, the number of that one, and the share of the first.

    Both are mixed as a whole (Zhang et al. 2018), or a rectangle comes from the other one (Yun et al. 2019); where both
    are wanted, one of the two is drawn for each batch.
    """
    pictures = batch["source"]
    x = pictures.values.float()
    others = torch.rand(len(x), generator=generator, device=x.device).argsort()
    ways = [mixed_up(x, x[others], mixup, generator)] if mixup else []
    ways += [cut_in(x, x[others], cutmix, generator)] if cutmix else []
    (made, share), (instead, its_share) = ways[0], ways[-1]
    if len(ways) > 1:  # both are made, so that nobody has to ask the device which one it drew
        first = torch.rand((), generator=generator, device=x.device) < 0.5
        made, share = torch.where(first, made, instead), torch.where(first, share, its_share)
    return Batch({**batch.fields, "source": Pictures(made, pictures.mask)}, batch.counts), others, share


def mixed_up(
    x: Float[Tensor, "B 3 Y X"], others: Float[Tensor, "B 3 Y X"], alpha: float, generator: torch.Generator
) -> tuple[Float[Tensor, "B 3 Y X"], Float[Tensor, ""]]:
    """Each picture as a whole with another, and its share."""
    share = beta(alpha, generator)
    return share * x + (1 - share) * others, share


def cut_in(
    x: Float[Tensor, "B 3 Y X"], others: Float[Tensor, "B 3 Y X"], alpha: float, generator: torch.Generator
) -> tuple[Float[Tensor, "B 3 Y X"], Float[Tensor, ""]]:
    """Each picture with a rectangle of another, and the share that is left of it."""
    inside = rectangle(x.shape[-2], x.shape[-1], 1 - beta(alpha, generator), generator)
    return torch.where(inside, others, x), 1 - inside.float().mean()


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
