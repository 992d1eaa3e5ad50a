"""The route of an agent through a grid world, for visualization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.view.picture import Panel

Position = tuple[int, int]
# Floors named after a color have that color; others get one of the extra colors in turn.
FLOOR_COLOURS = {"blue": "#3465a4", "brick": "#b5533c", "grass": "#4e9a06", "yellow": "#d9b310", "wood": "#8f5902"}
EXTRA_COLOURS = ("#888a85", "#ad7fa8", "#729fcf", "#c4a000", "#5c3566", "#ce5c00")


@dataclass(frozen=True)
class Route:
    """A world graph and a path in it: items of nodes, floors of edges, and the agent's poses (x, y, degrees)."""

    items: Mapping[Position, str]
    edges: Mapping[tuple[Position, Position], str]
    poses: Sequence[tuple[int, int, int]]

    @property
    def colours(self) -> dict[str, str]:
        """The color of each floor."""
        floors = sorted({*self.edges.values()})
        others = [floor for floor in floors if floor not in FLOOR_COLOURS]
        return {
            floor: FLOOR_COLOURS.get(floor) or EXTRA_COLOURS[others.index(floor) % len(EXTRA_COLOURS)]
            for floor in floors
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data: [x, y, item], [x, y, x, y, floor] once per edge, [x, y, degrees], colors of floors."""
        return {
            "items": [[*position, item] for position, item in self.items.items()],
            "ways": [[*start, *end, floor] for (start, end), floor in self.edges.items() if start < end],
            "poses": [list(pose) for pose in self.poses],
            "colours": self.colours,
        }

    def draw(self, panel: Panel, *, path: Path, title: str, theme: str) -> Path:
        """Draw the world with the route at the left and the attention weights of its actions at the right."""
        from saccade_worlds.navigation.route_picture import draw_route  # matplotlib loads slowly

        return draw_route(panel, route=self, path=path, title=title, theme=theme)
