"""Grid worlds for navigation: places with items, edges between them with a floor and a wall, and moves.

x grows to the right and y downwards, as in the SAIL maps (MacMahon et al. 2006). A pose is x, y and a direction in
degrees: 0 up, 90 right, 180 down, 270 left.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from saccade.data.sources.lines import open_file
from saccade.errors import SaccadeError

Place = tuple[int, int]
DIRECTIONS = {0: (0, -1), 90: (1, 0), 180: (0, 1), 270: (-1, 0)}  # change of x and y by one step
TURNS = {"left": 270, "right": 90}
ACTIONS = ("forward", *TURNS, "stop")
MAX_MAP_BYTES = 1 << 20
PLACE_PATTERN = re.compile(r"\s*(-?[0-9]{1,6})\s*,\s*(-?[0-9]{1,6})\s*")


class Pose(NamedTuple):
    x: int
    y: int
    direction: int

    @property
    def place(self) -> Place:
        return self.x, self.y

    def turn(self, degrees: int) -> Pose:
        return Pose(self.x, self.y, (self.direction + degrees) % 360)

    def __str__(self) -> str:
        return f"{self.x},{self.y},{self.direction}"


class Edge(NamedTuple):
    floor: str
    wall: str


@dataclass(frozen=True, eq=False)
class GridWorld:
    """Places with their items ("" for none), and edges between neighbouring places, in both directions."""

    name: str
    items: Mapping[Place, str]
    edges: Mapping[tuple[Place, Place], Edge]

    @functools.cached_property
    def poses(self) -> list[Pose]:
        return [Pose(*place, to) for place in self.items for to in DIRECTIONS]

    @functools.cached_property
    def pose_numbers(self) -> dict[Pose, int]:
        return {pose: number for number, pose in enumerate(self.poses)}

    def get_edge(self, place: Place, direction: int) -> Edge | None:
        """Return the edge from a place in a direction; None if there is a wall."""
        return self.edges.get((place, get_neighbor(place, direction)))

    def move(self, pose: Pose, action: str) -> Pose:
        """Return the pose after an action; walking against a wall and stopping change nothing."""
        if action in TURNS:
            return pose.turn(TURNS[action])
        if action not in ACTIONS:
            raise SaccadeError(f"unknown action {action!r}; expected {', '.join(ACTIONS)}")
        if action == "stop" or not self.get_edge(pose.place, pose.direction):
            return pose
        return Pose(*get_neighbor(pose.place, pose.direction), pose.direction)

    def follow(self, pose: Pose, actions: Sequence[str]) -> list[Pose]:
        """Return the first pose, and the pose after each action up to the first stop."""
        route = [pose]
        for action in actions:
            if action == "stop":
                break
            route.append(self.move(route[-1], action))
        return route

    @functools.cached_property
    def mirror_image(self) -> GridWorld:
        """The world with left and right swapped."""
        items = {(-x, y): item for (x, y), item in self.items.items()}
        edges = {((-a, b), (-c, d)): edge for ((a, b), (c, d)), edge in self.edges.items()}
        return GridWorld(f"{self.name}, mirrored", items, edges)


def get_neighbor(place: Place, direction: int) -> Place:
    x, y = DIRECTIONS[direction]
    return place[0] + x, place[1] + y


def mirror_pose(pose: Pose) -> Pose:
    return Pose(-pose.x, pose.y, -pose.direction % 360)


def infer_actions(poses: Sequence[Pose]) -> list[str]:
    """Return the actions that lead from each pose to the next, and "stop"; half turns are to the right."""
    actions: list[str] = []
    for here, there in pairwise(poses):
        if here.place == there.place:
            turn = (there.direction - here.direction) % 360
            actions += {0: [], 90: ["right"], 180: ["right"] * 2, 270: ["left"]}[turn]
        elif Pose(*get_neighbor(here.place, here.direction), here.direction) == there:
            actions.append("forward")
        else:
            raise SaccadeError(f"no action leads from {here} to {there}; expected one step ahead, or a turn")
    return [*normalize_half_turns(actions), "stop"]


def normalize_half_turns(actions: Sequence[str]) -> list[str]:
    """Replace half turns to the left by half turns to the right: equivalent, and one form is easier to learn."""
    normalized: list[str] = []
    for action in actions:
        normalized.append(action)
        if normalized[-2:] == ["left", "left"]:
            normalized[-2:] = ["right", "right"]
    return normalized


def build_world(
    name: str, items: Mapping[Place, str], edges: Mapping[tuple[Place, Place], Edge], *, where: str
) -> GridWorld:
    """Build a world; each edge must join neighbouring places, and is added in both directions."""
    for one, other in edges:
        if one not in items or other not in items or other not in [get_neighbor(one, to) for to in DIRECTIONS]:
            raise SaccadeError(f"{where}: an edge from {one} to {other} must join two neighbouring places of the map")
    if not items:
        raise SaccadeError(f"{where} has no place; expected <node x= y= item=> elements")
    return GridWorld(name, dict(items), {**edges, **{(other, one): edge for (one, other), edge in edges.items()}})


def read_map(path: str) -> GridWorld:
    """Read a map of SAIL: `<node x= y= item=>` and `<edge node1= node2= wall= floor=>`; plain, .gz or .xz."""
    file = Path(path)
    return _read_map(path, file.stat().st_mtime_ns if file.exists() else 0)


@functools.lru_cache(maxsize=64)
def _read_map(path: str, modified_ns: int) -> GridWorld:
    """Read a map, cached until the file is modified."""
    with open_file(Path(path)) as file:
        text = file.read(MAX_MAP_BYTES + 1)
    if len(text) > MAX_MAP_BYTES:
        raise SaccadeError(f"{path} is larger than {MAX_MAP_BYTES:,} bytes; expected a small map")
    items: dict[Place, str] = {}
    edges: dict[tuple[Place, Place], Edge] = {}
    world_name = [Path(path).name]

    def element(tag: str, attributes: dict[str, Any]) -> None:
        try:
            if tag == "map":
                world_name[0] = attributes.get("name", world_name[0])
            elif tag == "node":
                items[int(attributes["x"]), int(attributes["y"])] = attributes.get("item", "")
            elif tag == "edge":
                edges[parse_place(attributes["node1"]), parse_place(attributes["node2"])] = Edge(
                    attributes["floor"], attributes["wall"]
                )
        except (KeyError, ValueError) as error:
            raise SaccadeError(f"{path}: <{tag}> has no usable {error}; expected the elements of a SAIL map") from None

    parser = expat.ParserCreate()
    parser.StartElementHandler = element
    parser.EntityDeclHandler = _refuse_entities  # against entity expansion and external files
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise SaccadeError(f"{path} is not XML ({error}); expected a map in the format of SAIL") from None
    return build_world(world_name[0], items, edges, where=path)


def _refuse_entities(name: str, *_: Any) -> None:
    raise SaccadeError(f"a map declares the entity {name!r}; expected plain XML without entities")


def parse_place(text: str) -> Place:
    if not (found := PLACE_PATTERN.fullmatch(text)):
        raise ValueError(text)
    return int(found[1]), int(found[2])
