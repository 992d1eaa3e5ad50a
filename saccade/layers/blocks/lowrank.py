"""Low-rank additions beside a matrix that stays as it is (LoRA, Hu et al. 2022, section 4.1)."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

WEIGHT = "weight"
INSIDE = f".parametrizations.{WEIGHT}."  # in the names of what stands for a weight


class LowRank(nn.Module):
    """W + scale * up down. At first `up` is zero, so that nothing is changed.

    A tensor with more than two axes, such as the projections of all heads, is one matrix here: its last axis is what
    goes in.
    """

    def __init__(self, weight: Tensor, *, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.flatten(0, -2).shape
        self.scale = scale
        self.down = nn.Parameter(torch.randn(rank, columns).to(weight) / math.sqrt(columns))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Float[Tensor, "*n I"]) -> Float[Tensor, "*n I"]:
        return weight + self.scale * (self.up @ self.down).view_as(weight)


def attach(module: nn.Module, *, rank: int, scale: float) -> None:
    """From now on the module's weight is the sum, wherever it is used; of it only the addition is trained."""
    weight = module.get_parameter(WEIGHT)
    weight.requires_grad_(False)
    parametrize.register_parametrization(module, WEIGHT, LowRank(weight, rank=rank, scale=scale))


def merged(weights: Mapping[str, Tensor], *, scale: float) -> dict[str, Tensor]:
    """Named weights in which every sum stands under the name of the plain weight; the others stay as they are."""
    plain = {}
    for name, tensor in weights.items():
        owner, inside, part = name.partition(INSIDE)
        if not inside:
            plain[name] = tensor
        elif part == "original":
            up, down = (weights[f"{owner}{INSIDE}0.{factor}"] for factor in ("up", "down"))
            plain[f"{owner}.{WEIGHT}"] = tensor + scale * (up @ down).view_as(tensor)
    return plain
