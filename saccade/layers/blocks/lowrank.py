"""Low-rank adaptation of frozen weight matrices (LoRA, Hu et al. 2022, section 4.1)."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

WEIGHT = "weight"
PARAMETRIZED_INFIX = f".parametrizations.{WEIGHT}."  # in the names of the parameters of a parametrized weight


class LowRank(nn.Module):
    """W + scale * up down; `up` is initialized to zero, so that the model is unchanged at first.

    A tensor with more than two axes, such as the projections of all heads, is flattened to a matrix whose columns are
    the last axis, the inputs.
    """

    def __init__(self, weight: Tensor, *, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.flatten(0, -2).shape
        self.scale = scale
        self.down = nn.Parameter(torch.randn(rank, columns).to(weight) / math.sqrt(columns))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Float[Tensor, "*n I"]) -> Float[Tensor, "*n I"]:
        return weight + self.scale * (self.up @ self.down).view_as(weight)


def attach_lora(module: nn.Module, *, rank: int, scale: float) -> None:
    """Replace the module's weight by W + scale * up down, with W frozen."""
    weight = module.get_parameter(WEIGHT)
    weight.requires_grad_(False)
    parametrize.register_parametrization(module, WEIGHT, LowRank(weight, rank=rank, scale=scale))


def merge_lora(weights: Mapping[str, Tensor], *, scale: float) -> dict[str, Tensor]:
    """A state dict without LoRA: every adapted weight is merged into W under its plain name."""
    plain = {}
    for name, tensor in weights.items():
        owner, infix, part = name.partition(PARAMETRIZED_INFIX)
        if not infix:
            plain[name] = tensor
        elif part == "original":
            up, down = (weights[f"{owner}{PARAMETRIZED_INFIX}0.{factor}"] for factor in ("up", "down"))
            plain[f"{owner}.{WEIGHT}"] = tensor + scale * (up @ down).view_as(tensor)
    return plain
