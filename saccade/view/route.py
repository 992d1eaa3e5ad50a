"""Where somebody walked, to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Place = tuple[int, int]


@dataclass(frozen=True)
class Route:
    """Places with their items, ways with their floors, and the poses (x, y, direction) of somebody who walks there."""

    items: Mapping[Place, str]
    ways: Mapping[tuple[Place, Place], str]
    poses: Sequence[tuple[int, int, int]]
