"""Auxiliary outputs of layers, such as attention weights and the routing of experts.

Stacks and the `write` method of writers return them, and readers put them into the `aux` of a Memory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from saccade.layers.blocks.experts import Routing


class StepAttention(NamedTuple):
    """Attention weights of a recurrent writer, step by step and with gradients, and the positions sampled if hard."""

    steps: Sequence[Float[Tensor, "B t S"]]
    sampled_steps: Sequence[Int[Tensor, "B t"]] = ()

    @property
    def weights(self) -> Float[Tensor, "B T S"]:
        return torch.cat(tuple(self.steps), 1)

    @property
    def sampled_positions(self) -> Int[Tensor, "B T"]:
        """The position that hard attention sampled in each step; negative where attention was soft."""
        return torch.cat(tuple(self.sampled_steps), 1)


class Aux(TypedDict, total=False):
    """Holds references only: what is derived from them is computed when it is read."""

    values: Tensor  # values for cross-attention, where they are not the states (ConvS2S)
    attention: StepAttention
    routing: "list[Routing]"  # of all experts, in the order of use


def merge_aux(*parts: Aux) -> Aux:
    """Merge auxiliary outputs: routing is concatenated, for other keys the last one wins."""
    merged: Aux = {}
    for part in parts:
        merged |= part
    return merged | report_routing([one for part in parts for one in part.get("routing", ())])


def report_routing(routing: "list[Routing]") -> Aux:
    """The routing as auxiliary output; empty without experts."""
    return {"routing": routing} if routing else {}
