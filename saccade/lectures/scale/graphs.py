"""Path lengths between positions, measured on layers: the steps or layers that a signal needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def count_hops(layer: Callable[[int, Tensor], Tensor], n: int, width: int) -> int:
    """Return how many layers it takes until the last of n positions depends on the first; -1 if it never does.

    `layer(number, x)` is one layer on x (B, n, width). All positions that depend on the first one are changed, and
    those whose output changes depend on it too.
    """
    x, reached = torch.randn(1, n, width, dtype=torch.float64), torch.zeros(n, dtype=torch.bool)
    reached[0] = True
    for number in range(n):
        moved = torch.where(reached[:, None], x + 1 + torch.rand_like(x), x)
        after, before = layer(number, torch.cat((moved, x)))
        changed = ((after - before).abs().amax(-1) > 1e-12) | reached
        if changed[-1]:
            return number + 1
        if number and bool((changed == reached).all()):
            return -1
        reached = changed
    return -1


def measure_depth(y: Tensor) -> int:
    """Return the longest chain of operations that computed y, in autograd's graph: what cannot run in parallel."""
    depths: dict[object, int] = {}
    pending: list[object] = [y.grad_fn] if y.grad_fn is not None else []
    while pending:
        node: Any = pending[-1]
        before = [item for item, _ in node.next_functions if item is not None]
        missing = [item for item in before if item not in depths]
        if missing:
            pending += missing
            continue
        depths[node] = 1 + max((depths[item] for item in before), default=0)
        pending.pop()
    return max(depths.values(), default=0)


def find_dependencies(layer: Callable[[Tensor], Tensor], n: int, width: int) -> Tensor:
    """Return edges[i, j]: whether output i of a layer changes when input j does, measured for every position."""
    x = torch.randn(1, n, width, dtype=torch.float64)
    before, edges = layer(x), torch.zeros(n, n, dtype=torch.bool)
    for part in torch.arange(n).split(100):
        moved = x.expand(len(part), -1, -1).clone()
        moved[torch.arange(len(part)), part] += 1
        edges[:, part] = ((layer(moved) - before).abs().amax(-1) > 1e-12).T
    return edges
