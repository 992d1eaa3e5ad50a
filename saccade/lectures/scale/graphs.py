"""Path lengths between positions by graph search: the steps or layers that a signal needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def find_longest_path(edges: Tensor) -> int:
    """Return the steps from the first position to the farthest one; edges[i, j]: i is computed from j."""
    follows = edges.float()
    here = torch.zeros(len(edges))
    here[0] = 1
    seen, steps = here > 0, 0
    while True:
        new = (follows @ here > 0) & ~seen
        if not new.any():
            return steps
        seen, here, steps = seen | new, new.float(), steps + 1


def count_layers_to_reach(edges: Callable[[int], Tensor]) -> int:
    """Return the layers until the last position depends on the first; layer n has the edges `edges(n)`."""
    seen, layers = torch.zeros(len(edges(0))), 0
    seen[0] = 1
    while not seen[-1]:
        seen, layers = (edges(layers).float() @ seen > 0).float(), layers + 1
        if layers > len(seen):
            raise ValueError("the last position never depends on the first one")
    return layers


def find_dependencies(layer: Callable[[Tensor], Tensor], n: int, width: int) -> Tensor:
    """Return edges[i, j]: whether output i of a layer changes when input j does, measured for every position."""
    x = torch.randn(1, n, width, dtype=torch.float64)
    before, edges = layer(x), torch.zeros(n, n, dtype=torch.bool)
    for part in torch.arange(n).split(100):
        moved = x.expand(len(part), -1, -1).clone()
        moved[torch.arange(len(part)), part] += 1
        edges[:, part] = ((layer(moved) - before).abs().amax(-1) > 1e-12).T
    return edges
