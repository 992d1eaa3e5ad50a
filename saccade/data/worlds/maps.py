"""A small world to walk in: places with items, ways between them with a floor and a wall; and how one moves there.

x grows to the right and y downwards, as in the maps of SAIL (MacMahon et al. 2006). A pose is x, y and where one looks
to, in degrees: 0 up, 90 right, 180 down, 270 left.
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
AHEAD = {0: (0, -1), 90: (1, 0), 180: (0, 1), 270: (-1, 0)}  # what one step changes
TURNS = {"left": 270, "right": 90}
ACTIONS = ("forward", *TURNS, "stop")
LARGEST = 1 << 20  # bytes of a map
PLACE = re.compile(r"\s*(-?[0-9]{1,6})\s*,\s*(-?[0-9]{1,6})\s*")


class Pose(NamedTuple):
    x: int
    y: int
    to: int

    @property
    def place(self) -> Place:
        return self.x, self.y

    def turned(self, degrees: int) -> Pose:
        return Pose(self.x, self.y, (self.to + degrees) % 360)

    def __str__(self) -> str:
        return f"{self.x},{self.y},{self.to}"


class Way(NamedTuple):
    floor: str
    wall: str


@dataclass(frozen=True, eq=False)
class World:
    """Places with their items (an empty text where there is none), and ways, each under both of its directions."""

    name: str
    items: Mapping[Place, str]
    ways: Mapping[tuple[Place, Place], Way]

    @functools.cached_property
    def poses(self) -> list[Pose]:
        return [Pose(*place, to) for place in self.items for to in AHEAD]

    @functools.cached_property
    def numbers(self) -> dict[Pose, int]:
        return {pose: number for number, pose in enumerate(self.poses)}

    def way(self, place: Place, to: int) -> Way | None:
        """The way that leads out of a place in a direction, where there is one."""
        return self.ways.get((place, beyond(place, to)))

    def moved(self, pose: Pose, action: str) -> Pose:
        """The pose after an action; one who walks against a wall stays, as does one who stops."""
        if action in TURNS:
            return pose.turned(TURNS[action])
        if action not in ACTIONS:
            raise SaccadeError(f"unknown action {action!r}; expected {', '.join(ACTIONS)}")
        if action == "stop" or not self.way(pose.place, pose.to):
            return pose
        return Pose(*beyond(pose.place, pose.to), pose.to)

    def walked(self, pose: Pose, actions: Sequence[str]) -> list[Pose]:
        """The first pose, and that after each of the actions up to the first stop."""
        route = [pose]
        for action in actions:
            if action == "stop":
                break
            route.append(self.moved(route[-1], action))
        return route

    @functools.cached_property
    def mirrored(self) -> World:
        """The same with left and right exchanged."""
        items = {(-x, y): item for (x, y), item in self.items.items()}
        ways = {((-a, b), (-c, d)): way for ((a, b), (c, d)), way in self.ways.items()}
        return World(f"{self.name}, mirrored", items, ways)


def beyond(place: Place, to: int) -> Place:
    x, y = AHEAD[to]
    return place[0] + x, place[1] + y


def mirrored(pose: Pose) -> Pose:
    return Pose(-pose.x, pose.y, -pose.to % 360)


def actions_between(poses: Sequence[Pose]) -> list[str]:
    """What leads from each pose to the next one, and a stop: steps ahead, or turns, half a turn to the right."""
    found: list[str] = []
    for here, there in pairwise(poses):
        if here.place == there.place:
            turn = (there.to - here.to) % 360
            found += {0: [], 90: ["right"], 180: ["right"] * 2, 270: ["left"]}[turn]
        elif Pose(*beyond(here.place, here.to), here.to) == there:
            found.append("forward")
        else:
            raise SaccadeError(f"no action leads from {here} to {there}; expected one step ahead, or a turn")
    return [*half_turns_right(found), "stop"]


def half_turns_right(actions: Sequence[str]) -> list[str]:
    """The same with each half turn to the left as one to the right: it ends alike, and one way is easier to learn."""
    made: list[str] = []
    for action in actions:
        made.append(action)
        if made[-2:] == ["left", "left"]:
            made[-2:] = ["right", "right"]
    return made


def joined(name: str, items: Mapping[Place, str], ways: Mapping[tuple[Place, Place], Way], *, where: str) -> World:
    """A world whose ways lead from one of its places to the next one, and back."""
    for one, other in ways:
        if one not in items or other not in items or other not in [beyond(one, to) for to in AHEAD]:
            raise SaccadeError(f"{where}: a way from {one} to {other} must join two neighbouring places of the map")
    if not items:
        raise SaccadeError(f"{where} has no place; expected <node x= y= item=> elements")
    return World(name, dict(items), {**ways, **{(other, one): way for (one, other), way in ways.items()}})


def read_map(path: str) -> World:
    """A map of SAIL: `<node x= y= item=>` and `<edge node1= node2= wall= floor=>`; plain, .gz or .xz."""
    file = Path(path)
    return _read_map(path, file.stat().st_mtime_ns if file.exists() else 0)


@functools.lru_cache(maxsize=64)
def _read_map(path: str, changed: int) -> World:
    """The same, once for each time when the file was changed."""
    with open_file(Path(path)) as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise SaccadeError(f"{path} is larger than {LARGEST:,} bytes; expected a map of a small world")
    items: dict[Place, str] = {}
    ways: dict[tuple[Place, Place], Way] = {}
    named = [Path(path).name]

    def element(tag: str, about: dict[str, Any]) -> None:
        try:
            if tag == "map":
                named[0] = about.get("name", named[0])
            elif tag == "node":
                items[int(about["x"]), int(about["y"])] = about.get("item", "")
            elif tag == "edge":
                ways[place_of(about["node1"]), place_of(about["node2"])] = Way(about["floor"], about["wall"])
        except (KeyError, ValueError) as error:
            raise SaccadeError(f"{path}: <{tag}> has no usable {error}; expected the elements of a SAIL map") from None

    parser = expat.ParserCreate()
    parser.StartElementHandler = element
    parser.EntityDeclHandler = _refuse_entities  # so that nothing grows, and no other file is read
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise SaccadeError(f"{path} is no XML ({error}); expected the map of a world, as SAIL has them") from None
    return joined(named[0], items, ways, where=path)


def _refuse_entities(name: str, *_: Any) -> None:
    raise SaccadeError(f"a map declares the entity {name!r}; expected plain XML without entities")


def place_of(text: str) -> Place:
    if not (found := PLACE.fullmatch(text)):
        raise ValueError(text)
    return int(found[1]), int(found[2])
