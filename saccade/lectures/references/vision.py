"""Residual convolutional networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def run_residual_network(blocks: Any, pictures: Tensor) -> Tensor:
    """The feature map (B, C, Y, X) of residual blocks, from pixels scaled to -1 ... 1."""
    x = pictures.double() / 127.5 - 1
    for block in blocks:
        x = run_residual_block(block, x)
    return x


def run_residual_block(block: Any, x: Tensor) -> Tensor:
    """relu(GN(W2 * relu(GN(W1 * x))) + P * x) (He et al. 2016), with group normalization."""
    norms, widths = block.norms, block.first.weight.shape
    has_projection = block.first.stride != (1, 1) or widths[0] != widths[1]
    y = F.conv2d(x, block.first.weight, stride=block.first.stride, padding=1)
    y = F.group_norm(y, norms[0].num_groups, norms[0].weight, norms[0].bias, norms[0].eps).clamp(min=0)
    y = F.conv2d(y, block.second.weight, padding=1)
    y = F.group_norm(y, norms[1].num_groups, norms[1].weight, norms[1].bias, norms[1].eps)
    return (y + (F.conv2d(x, block.past.weight, stride=block.past.stride) if has_projection else x)).clamp(min=0)


def list_cells(features: Tensor) -> Tensor:
    """The cells (B, S, C) of a feature map (B, C, Y, X): first all of the first row, then those of the second."""
    return torch.stack([features[:, :, y, x] for y in range(features.shape[2]) for x in range(features.shape[3])], 1)
