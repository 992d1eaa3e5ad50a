"""The pyramid of listen, attend and spell: recurrent layers, each over half as many positions as the one below."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.recurrent import Hidden, Name, over_rectangle, recurrent_layer


class PyramidStack(nn.Module):
    """Layers that read in both directions; from the second on, two neighbouring states are one input.

    h_i^j = BLSTM(h_{i-1}^j, [h_{2i}^{j-1}, h_{2i+1}^{j-1}]) (Chan et al. 2016, equation 5). The last state of an odd
    row stands beside zeros. What is returned as state is the last one of each layer, of both directions side by side.
    """

    def __init__(self, dim: int, *, cell: Name, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(
            recurrent_layer(cell, 2 * dim if number else dim, dim // 2, bidirectional=True) for number in range(layers)
        )
        self.dim = dim
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: None = None,
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"], tuple[Hidden, ...], dict[str, Tensor]]:
        mask = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        final = []
        with torch.autocast(x.device.type, enabled=False):  # under which torch's kernels would run in float16
            x = x.to(self.layers[0].weight_hh_l0.dtype)
            for number, layer in enumerate(self.layers):
                x, mask = paired(x, mask) if number else (x, mask)
                x, last = over_rectangle(layer, x, mask.sum(1).clamp(min=1))
                x = self.dropout(x)
                final.append((last,))
        return x, mask, tuple(final), {}


def paired(x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> tuple[Float[Tensor, "B S D2"], Bool[Tensor, "B S"]]:
    """Neighbours side by side, half as many positions; padding beside the last of an odd row counts as zeros."""
    odd = x.shape[1] % 2
    x = nn.functional.pad(x * mask[..., None], (0, 0, 0, odd))
    return x.unflatten(1, (-1, 2)).flatten(2), mask[:, ::2]
