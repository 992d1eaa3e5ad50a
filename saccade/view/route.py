"""Where somebody walked, to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Place = tuple[int, int]
# Floors that are colours have them; others get one of these in turn.
COLOURS = {"blue": "#3465a4", "brick": "#b5533c", "grass": "#4e9a06", "yellow": "#d9b310", "wood": "#8f5902"}
OTHERS = ("#888a85", "#ad7fa8", "#729fcf", "#c4a000", "#5c3566", "#ce5c00")


@dataclass(frozen=True)
class Route:
    """Places with their items, ways with their floors, and the poses (x, y, direction) of somebody who walks there."""

    items: Mapping[Place, str]
    ways: Mapping[tuple[Place, Place], str]
    poses: Sequence[tuple[int, int, int]]

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each floor that there is."""
        floors = sorted({*self.ways.values()})
        others = [floor for floor in floors if floor not in COLOURS]
        return {floor: COLOURS.get(floor) or OTHERS[others.index(floor) % len(OTHERS)] for floor in floors}

    def described(self) -> dict[str, Any]:
        """As plain data: [x, y, item], [x, y, x, y, floor] for each way once, [x, y, direction], floors' colours."""
        return {
            "items": [[*place, item] for place, item in self.items.items()],
            "ways": [[*one, *other, floor] for (one, other), floor in self.ways.items() if one < other],
            "poses": [list(pose) for pose in self.poses],
            "colours": self.colours,
        }
