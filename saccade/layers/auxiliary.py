"""What layers report beside their output: returned by a stack, in the `aux` of a Memory, by a writer's `write`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from saccade.layers.blocks.experts import Routing


class StepAttention(NamedTuple):
    """Attention weights of a recurrent writer with their gradients, step by step, and what hard attention sampled."""

    steps: Sequence[Float[Tensor, "B t S"]]
    sampled_steps: Sequence[Int[Tensor, "B t"]] = ()

    @property
    def weights(self) -> Float[Tensor, "B T S"]:
        return torch.cat(tuple(self.steps), 1)

    @property
    def sampled(self) -> Int[Tensor, "B T"]:
        """The position that each step attended to; negative where it attended to all of them."""
        return torch.cat(tuple(self.sampled_steps), 1)


class Aux(TypedDict, total=False):
    """Nothing is computed for it before somebody reads it."""

    values: Tensor  # what attention mixes where that is not the states (ConvS2S)
    attention: StepAttention
    routing: "list[Routing]"  # the choices of all experts in the order of use


def merge_aux(*parts: Aux) -> Aux:
    """What several layers report together; where two report the same, the choices of experts add up, else the last."""
    merged: Aux = {}
    for part in parts:
        merged |= part
    return merged | report_routing([one for part in parts for one in part.get("routing", ())])


def report_routing(routing: "list[Routing]") -> Aux:
    """Nothing where there are no experts."""
    return {"routing": routing} if routing else {}
