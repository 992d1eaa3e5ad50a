"""Features of what is visible from a pose, relative to it, so that they generalize to other worlds.

After Mei et al. (2016, section 4), who encode what is visible ahead, to the left and to the right; here also what lies
behind, how far the path goes, and which floors cross it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saccade.errors import SaccadeError
from saccade_worlds.navigation.maps import GridWorld, Place, get_neighbor
from saccade_worlds.tables import ActionWriter

RELATIVE_DIRECTIONS = (0, 90, 180, 270)  # ahead, right, behind, left
DISTANCE_SCALE = 4.0  # steps; unit of distances


@dataclass(frozen=True)
class ObservationEncoder:
    """Encodes the view from each pose of a world; the fields are the known names of items, floors and walls."""

    items: tuple[str, ...]
    floors: tuple[str, ...]
    walls: tuple[str, ...]

    @property
    def features_per_direction(self) -> int:
        """Number of features of one direction, as `_encode_direction` lists them."""
        return 5 + 3 * len(self.floors) + 2 * len(self.walls) + 3 * len(self.items)

    @property
    def num_features(self) -> int:
        return len(self.items) + 1 + len(RELATIVE_DIRECTIONS) * self.features_per_direction

    def encode_world(self, world: GridWorld) -> np.ndarray:
        """Return the features of each pose of a world (poses, num_features)."""
        self.validate_world(world)
        views = {
            (place, direction): self._encode_direction(world, place, direction)
            for place in world.items
            for direction in RELATIVE_DIRECTIONS
        }
        rows = []
        for pose in world.poses:
            item = world.items[pose.place]
            sides = [views[pose.place, (pose.direction + side) % 360] for side in RELATIVE_DIRECTIONS]
            rows.append(np.concatenate([_encode_multi_hot(self.items, [item]), [float(not item)], *sides]))
        return np.array(rows, dtype=np.float32)

    def validate_world(self, world: GridWorld) -> None:
        """Refuse a world with items, floors or walls whose names are unknown."""
        found = {
            "items": {*world.items.values()} - {""},
            "floors": {edge.floor for edge in world.edges.values()},
            "walls": {edge.wall for edge in world.edges.values()},
        }
        for kind, names in found.items():
            if unknown := sorted(names - {*getattr(self, kind)}):
                raise SaccadeError(
                    f"the map {world.name} has {kind} that the model does not know: {', '.join(unknown)}; "
                    f"set writer.{kind} of the recipe to all of them"
                )

    def _encode_direction(self, world: GridWorld, place: Place, direction: int) -> np.ndarray:
        """Encode what is visible from a place in one direction, up to the next wall."""
        edges, places = [], []
        while edge := world.get_edge(place, direction):
            place = get_neighbor(place, direction)
            edges.append(edge)
            places.append(place)
        items = [world.items[one] for one in places]
        crossing = [_find_crossing_floors(world, one, direction) for one in places]
        first = next((n for n, floors in enumerate(crossing) if floors), len(places))
        steps = len(places)
        return np.concatenate(
            [
                [
                    float(bool(steps)),
                    float(steps == 1),
                    steps / DISTANCE_SCALE,
                    (first + 1) / DISTANCE_SCALE * bool(steps),
                    _score_nearest_item(items),
                ],
                _encode_multi_hot(self.floors, [edge.floor for edge in edges[:1]]),
                _encode_multi_hot(self.walls, [edge.wall for edge in edges[:1]]),
                _encode_multi_hot(self.walls, [edge.wall for edge in edges[1:]]),
                _encode_multi_hot(self.items, items[:1]),
                _encode_multi_hot(self.items, items[1:2]),
                _encode_multi_hot(self.items, items[2:]),
                _encode_multi_hot(self.floors, [floor for floors in crossing[:1] for floor in floors]),
                _encode_multi_hot(self.floors, [floor for floors in crossing[1:] for floor in floors]),
            ]
        )


def build_observation_encoder(writer: ActionWriter) -> ObservationEncoder:
    return ObservationEncoder(writer.items, writer.floors, writer.walls)


def _find_crossing_floors(world: GridWorld, place: Place, direction: int) -> list[str]:
    """Return the floors of the edges to the left and to the right."""
    edges = [world.get_edge(place, (direction + turn) % 360) for turn in (90, 270)]
    return [edge.floor for edge in edges if edge is not None]


def _score_nearest_item(items: Sequence[str]) -> float:
    """Return 1 / distance of the nearest item, 0 if there is none."""
    return next((1 / (n + 1) for n, item in enumerate(items) if item), 0.0)


def _encode_multi_hot(names: Sequence[str], seen: Sequence[str]) -> np.ndarray:
    return np.array([float(name in seen) for name in names])
