"""What goes past a recurrent layer to the one above it: nothing, a sum, or a linear map."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Way = Literal["none", "residual", "fast-forward"]
PLAIN = 2  # layers at the bottom without a sum with their input (Wu et al. 2016, section 3.1)


class Connections(nn.Module):
    """What the layer above is given, of what a layer was given and what it gave.

    none: what it gave. residual: the sum of both, from the third layer on (Wu et al. 2016, equation 6).

    fast-forward: f^{k+1} = W [h^k; f^k], where layer k makes h^k of f^k, so that linear maps lead past all recurrences
    (Zhou et al. 2016, section 3.1). There f^k are the inputs of the four gates, of which the half is carried on; here
    f^k is as wide as h^k, and the inputs of the gates are W_ih f^k, so that torch's kernels take it. f^1 is the vector
    of the word. What the stack gives is one map more, of the last h and f.
    """

    def __init__(self, way: Way, dim: int, layers: int) -> None:
        super().__init__()
        self.sums = way == "residual"
        joins = [nn.Linear(2 * dim, dim, bias=False) for _ in range(layers)] if way == "fast-forward" else []
        for join in joins:
            nn.init.xavier_uniform_(join.weight)
        self.joins = nn.ModuleList(joins)

    def forward(
        self, number: int, below: Float[Tensor, "*rows D"], above: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows D"]:
        """`below` is what layer `number`, counted from 0, was given, and `above` what it gave."""
        if self.joins:
            joined: Tensor = self.joins[number](torch.cat((above, below), -1))
            return joined
        return above + below if self.sums and number >= PLAIN else above
