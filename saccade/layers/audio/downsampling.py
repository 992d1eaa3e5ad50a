"""Downsampling of audio frames: strided convolutions before a stack, and pyramidal recurrent layers."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.recurrent import CellName, Hidden, build_recurrent_layer, run_padded_layer
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory


class Stem(nn.Module):
    """Strided convolutions over time, each followed by GELU, as in Whisper (Radford et al. 2022, section 2.2, strides 1
    and 2). Padding is zeroed before every convolution. Without strides it is a linear projection."""

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


# ---- the pyramidal encoder of Listen, Attend and Spell


class PyramidStack(nn.Module):
    """Bidirectional recurrent layers; from the second on, each input concatenates two consecutive states.

    h_i^j = BLSTM(h_{i-1}^j, [h_{2i}^{j-1}, h_{2i+1}^{j-1}]) (Chan et al. 2016, equation 5). In sequences of odd length
    the last state is concatenated with zeros. The returned state is the last one of each layer, both directions
    concatenated.
    """

    operation = "recurrence"  # for counts of parameters by operation

    def __init__(self, dim: int, *, cell: CellName, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(
            build_recurrent_layer(cell, 2 * dim if number else dim, dim // 2, bidirectional=True)
            for number in range(layers)
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
        with torch.autocast(x.device.type, enabled=False):  # torch's kernels would run in half precision
            x = x.to(self.layers[0].weight_hh_l0.dtype)
            for number, layer in enumerate(self.layers):
                x, mask = concat_pairs(x, mask) if number else (x, mask)
                x, last = run_padded_layer(layer, x, mask.sum(1).clamp(min=1))
                x = self.dropout(x)
                final.append((last,))
        return x, mask, tuple(final), {}


def concat_pairs(
    x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B S D2"], Bool[Tensor, "B S"]]:
    """Concatenate pairs of consecutive positions; padding counts as zeros."""
    odd = x.shape[1] % 2
    x = nn.functional.pad(x * mask[..., None], (0, 0, 0, odd))
    return x.unflatten(1, (-1, 2)).flatten(2), mask[:, ::2]
