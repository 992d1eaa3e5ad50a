"""Convolutions before a stack: frames a few milliseconds apart become fewer and wider ones."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


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
