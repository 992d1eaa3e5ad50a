"""Learned positions of very long texts (Kitaev et al. 2020, as their code has them)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import SaccadeError


class Axial(nn.Module):
    """Position p of rows of n is [a_(p // n); b_(p % n)]: m + n vectors in the place of m n."""

    def __init__(self, dim: int, *, shape: tuple[int, int], first: int) -> None:
        super().__init__()
        if not 0 < first < dim:
            raise SaccadeError(
                f"axial positions have features for rows and for columns, which together are {dim}; "
                f"positions.first must be between 1 and {dim - 1}, got {first}"
            )
        self.shape = shape
        self.rows = nn.Embedding(shape[0], first)
        self.columns = nn.Embedding(shape[1], dim - first)
        for table in (self.rows, self.columns):
            nn.init.normal_(table.weight, std=dim**-0.5)

    def forward(self, positions: Int[Tensor, "b T"]) -> Float[Tensor, "b T D"]:
        longest = self.shape[0] * self.shape[1]
        # What stands in it is asked on a CPU only: any other device would have to wait.
        if positions.device.type == "cpu" and positions.numel() and int(positions.max()) >= longest:
            raise SaccadeError(
                f"a text of {int(positions.max()) + 1} tokens has more positions than were learned, {longest}; "
                "split it, or train with a larger positions.shape"
            )
        columns = self.shape[1]
        return torch.cat((self.rows(positions // columns), self.columns(positions % columns)), -1)
