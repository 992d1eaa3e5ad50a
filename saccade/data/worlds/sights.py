"""What is seen from a pose, as numbers: everything is told by its direction from there, nothing by its place.

So what was learned in one world holds in another one. After Mei et al. (2016, section 4), who tell what is seen to the
front, left and right; here also what lies behind, how far one can go, and which floors cross on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saccade.config.schema import ActionWriter
from saccade.data.worlds.maps import Place, World, beyond
from saccade.errors import SaccadeError

SIDES = (0, 90, 180, 270)  # ahead, right, behind, left
FAR = 4.0  # steps: how far one can go is told in this unit


@dataclass(frozen=True)
class Eye:
    """The names of what can be told apart."""

    items: tuple[str, ...]
    floors: tuple[str, ...]
    walls: tuple[str, ...]

    @property
    def side(self) -> int:
        """Numbers for one direction: open, first, its end; floor, wall; what is next, what is farther; what crosses."""
        return 5 + 3 * len(self.floors) + 2 * len(self.walls) + 3 * len(self.items)

    @property
    def size(self) -> int:
        return len(self.items) + 1 + len(SIDES) * self.side

    def sights(self, world: World) -> np.ndarray:
        """A row of numbers for each pose of a world."""
        self.check(world)
        around = {(place, to): self._along(world, place, to) for place in world.items for to in SIDES}
        rows = []
        for pose in world.poses:
            item = world.items[pose.place]
            sides = [around[pose.place, (pose.to + side) % 360] for side in SIDES]
            rows.append(np.concatenate([_marked(self.items, [item]), [float(not item)], *sides]))
        return np.array(rows, dtype=np.float32)

    def check(self, world: World) -> None:
        """Refuses a world with something that has no name here."""
        found = {
            "items": {*world.items.values()} - {""},
            "floors": {way.floor for way in world.ways.values()},
            "walls": {way.wall for way in world.ways.values()},
        }
        for kind, names in found.items():
            if unknown := sorted(names - {*getattr(self, kind)}):
                raise SaccadeError(
                    f"the map {world.name} has {kind} that the model has no name for: {', '.join(unknown)}; "
                    f"set writer.{kind} of the recipe to all that there are"
                )

    def _along(self, world: World, place: Place, to: int) -> np.ndarray:
        """What is seen from a place in one direction of the map, up to the end of the way."""
        ways, places = [], []
        while way := world.way(place, to):
            place = beyond(place, to)
            ways.append(way)
            places.append(place)
        items = [world.items[one] for one in places]
        crossing = [_crossing(world, one, to) for one in places]
        first = next((n for n, floors in enumerate(crossing) if floors), len(places))
        steps = len(places)
        return np.concatenate(
            [
                [float(bool(steps)), float(steps == 1), steps / FAR, (first + 1) / FAR * bool(steps), _nearest(items)],
                _marked(self.floors, [way.floor for way in ways[:1]]),
                _marked(self.walls, [way.wall for way in ways[:1]]),
                _marked(self.walls, [way.wall for way in ways[1:]]),
                _marked(self.items, items[:1]),
                _marked(self.items, items[1:2]),
                _marked(self.items, items[2:]),
                _marked(self.floors, [floor for floors in crossing[:1] for floor in floors]),
                _marked(self.floors, [floor for floors in crossing[1:] for floor in floors]),
            ]
        )


def eye_of(writer: ActionWriter) -> Eye:
    return Eye(writer.items, writer.floors, writer.walls)


def _crossing(world: World, place: Place, to: int) -> list[str]:
    """The floors of the ways that go off to the left and to the right."""
    ways = [world.way(place, (to + turn) % 360) for turn in (90, 270)]
    return [way.floor for way in ways if way is not None]


def _nearest(items: Sequence[str]) -> float:
    """1 for an item at the next place, less for one farther away, 0 where there is none."""
    return next((1 / (n + 1) for n, item in enumerate(items) if item), 0.0)


def _marked(names: Sequence[str], seen: Sequence[str]) -> np.ndarray:
    return np.array([float(name in seen) for name in names])
