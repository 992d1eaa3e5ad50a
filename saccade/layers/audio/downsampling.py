"""Convolutions before a stack: frames a few milliseconds apart become fewer and wider ones."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.recurrent import Hidden, Name, over_rectangle, recurrent_layer
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory


class Stem(nn.Module):
    """Convolutions over time, each followed by GELU, of which each keeps every n-th position of those before it.

    So Whisper begins (Radford et al. 2022, section 2.2, with strides 1 and 2). Padding is zeros for every one of them.
    Without strides it is one product.
    """

    def __init__(self, features: int, dim: int, *, strides: Sequence[int], kernel: int = 3) -> None:
        super().__init__()
        widths = [features, *(dim for _ in strides)]
        self.layers: Any = nn.ModuleList(
            nn.Conv1d(width, dim, kernel, stride=stride, padding=kernel // 2)
            for width, stride in zip(widths, strides, strict=False)
        )
        self.project = None if strides else nn.Linear(features, dim)
        self.strides = tuple(strides)

    def forward(
        self, x: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"]]:
        if self.project is not None:
            return self.project(x), mask
        x = x.mT
        for layer, stride in zip(self.layers, self.strides, strict=True):
            x = F.gelu(layer(x * mask[:, None]))
            mask = mask[:, ::stride]
        return x.mT, mask


# ---- The pyramid of listen, attend and spell: recurrent layers, each over half as many positions as the one below.


class PyramidStack(nn.Module):
    """Layers that read in both directions; from the second on, two neighbouring states are one input.

    h_i^j = BLSTM(h_{i-1}^j, [h_{2i}^{j-1}, h_{2i+1}^{j-1}]) (Chan et al. 2016, equation 5). The last state of an odd
    row stands beside zeros. What is returned as state is the last one of each layer, of both directions side by side.
    """

    operation = "recurrence"  # for counts of parameters by operation

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
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"], tuple[Hidden, ...], Aux]:
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
