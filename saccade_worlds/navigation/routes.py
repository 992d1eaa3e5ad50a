"""Read instructions and routes, from files in the format of SAIL or generated, as rows of text.

A corpus is a map and a .jsonl file with `instruction` and `path`, a list of [x, y, direction]; or such a file alone,
whose lines name a `map` in the same folder; or `embedded:worlds`. The source of a row is a line of JSON, the same as
the input of a trained model: {"instruction": ..., "map": FILE, "start": [x, y, direction]}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data.sources.pairs import EMBEDDED_PREFIX, hash_file
from saccade.data.sources.table import read_records
from saccade.errors import SaccadeError
from saccade.parsing import parse_json
from saccade_worlds.navigation import generated_worlds
from saccade_worlds.navigation.maps import (
    DIRECTIONS,
    GridWorld,
    Pose,
    infer_actions,
    mirror_pose,
    normalize_half_turns,
    read_map,
)

Row = tuple[int, str, str]
VERSION = 3  # of the rows; part of keys of the cache
ANY_DIRECTION = -1  # direction of a start pose that is not given
EXPECTED_INPUT = 'expected {"instruction": "...", "map": "FILE.xml", "start": [x, y, direction]}'
POSE_PATTERN = re.compile(r" *-?[0-9]{1,6} *, *-?[0-9]{1,6} *, *[0-9]{1,3} *")  # a pose as text: 3, 4, 90
OPPOSITE_SIDE = {"left": "right", "right": "left"}
SIDE_PATTERN = re.compile(r"\b(left|right)\b", re.IGNORECASE)


@dataclass(frozen=True)
class NavigationInput:
    """Input of a navigation model: instruction, map and start pose."""

    instruction: str
    map: str
    start: Pose
    is_mirrored: bool = False

    @property
    def world(self) -> GridWorld:
        return load_world(self.map, mirrored=self.is_mirrored)

    def to_json(self) -> str:
        values: dict[str, Any] = {"instruction": self.instruction, "map": self.map, "start": self.start}
        return json.dumps(values | ({"mirrored": True} if self.is_mirrored else {}), ensure_ascii=False)

    def mirror(self) -> NavigationInput:
        return NavigationInput(swap_sides(self.instruction), self.map, mirror_pose(self.start), is_mirrored=True)


def swap_sides(words: str) -> str:
    """Swap the words left and right."""
    return SIDE_PATTERN.sub(lambda found: OPPOSITE_SIDE[found[0].lower()], words)


def load_world(name: str, *, mirrored: bool = False) -> GridWorld:
    """Load the world of a map: a file, or `embedded:NAME/NUMBER`."""
    world = (
        generated_worlds.generate_world(name.removeprefix(EMBEDDED_PREFIX))
        if name.startswith(EMBEDDED_PREFIX)
        else read_map(name)
    )
    return world.mirror_image if mirrored else world


def parse_navigation_input(line: str, *, where: str) -> NavigationInput:
    """Parse the input of a navigation model, a line of JSON."""
    try:
        values = parse_json(line, where)
    except SaccadeError as error:
        raise SaccadeError(f"{error}; {EXPECTED_INPUT}") from None
    if not isinstance(values, dict):
        raise SaccadeError(f"{where} is not a JSON object; {EXPECTED_INPUT}")
    for key in ("instruction", "map"):
        if not isinstance(values.get(key), str):
            raise SaccadeError(f"{where} has no text under {key!r}, got {values.get(key)!r}; {EXPECTED_INPUT}")
    walk = NavigationInput(
        values["instruction"], values["map"], parse_pose(values.get("start"), where), bool(values.get("mirrored"))
    )
    if walk.start not in walk.world.pose_numbers:
        raise SaccadeError(
            f"{where}: there is no pose {walk.start} in the map {walk.world.name}; expected one of its places, and "
            f"a direction of {', '.join(map(str, DIRECTIONS))}"
        )
    return walk


def parse_pose(value: Any, where: str, *, allow_any_direction: bool = False) -> Pose:
    directions = (*DIRECTIONS, ANY_DIRECTION) if allow_any_direction else tuple(DIRECTIONS)
    if isinstance(value, str) and POSE_PATTERN.fullmatch(value):
        value = [int(part) for part in value.split(",")]
    numbers = isinstance(value, list | tuple) and len(value) == 3 and all(type(one) is int for one in value)
    if not numbers or value[2] not in directions:
        raise SaccadeError(
            f"{where}: {value!r} is not a pose; expected [x, y, direction], whole numbers with a direction of "
            f"{', '.join(map(str, directions))}"
        )
    return Pose(*value)


@dataclass(frozen=True)
class Route:
    """An example of a corpus: an instruction and the poses of its route; the first direction may be ANY_DIRECTION."""

    number: int
    instruction: str
    map: str
    path: tuple[Pose, ...]

    def iter_rows(self, *, augment: bool, mirror: bool) -> Iterator[Row]:
        """Yield one row; with `augment`, one for each possible start direction, and mirrored ones with `mirror`."""
        first = self.path[0]
        if first.direction != ANY_DIRECTION:
            directions = [first.direction]
        elif augment:
            directions = list(DIRECTIONS)
        else:  # chosen by a hash of instruction and place, so that it does not depend on the route
            digest = blake2b(f"{self.instruction} {first.x} {first.y}".encode(), digest_size=1).digest()[0]
            directions = [[*DIRECTIONS][digest % len(DIRECTIONS)]]
        for to in directions:
            start = Pose(first.x, first.y, to)
            actions = infer_actions([start, *self.path[1:]])
            walk = NavigationInput(self.instruction, self.map, start)
            yield self.number, walk.to_json(), " ".join(actions)
            if augment and mirror:
                turned = normalize_half_turns(swap_sides(" ".join(actions)).split())
                yield self.number, walk.mirror().to_json(), " ".join(turned)


def read_routes(corpus: Corpus) -> Iterator[Route]:
    name = corpus.files[0]
    if name.startswith(EMBEDDED_PREFIX):
        return _generate_routes(name.removeprefix(EMBEDDED_PREFIX), corpus.examples)
    return islice(_read_file(corpus), corpus.examples)


def _generate_routes(name: str, examples: int | None) -> Iterator[Route]:
    for number, (instruction, world, path) in enumerate(generated_worlds.generate_routes(name, examples), start=1):
        yield Route(number, instruction, f"{EMBEDDED_PREFIX}{world}", tuple(path))


def _read_file(corpus: Corpus) -> Iterator[Route]:
    path = Path(corpus.files[-1])
    for number, record in read_records(path, is_header=lambda _: True):
        where = f"{path}:{number}"
        instruction, poses = record.get("instruction"), record.get("path")
        if not isinstance(instruction, str) or not isinstance(poses, list) or not poses:
            raise SaccadeError(
                f"{where} has no route; expected a text 'instruction' and a list 'path' of [x, y, direction]"
            )
        route = Route(
            number,
            instruction,
            corpus.files[0] if len(corpus.files) > 1 else _resolve_map(path, record, where),
            tuple(parse_pose(pose, where, allow_any_direction=not n) for n, pose in enumerate(poses)),
        )
        _validate_route(route, where)
        yield route


def _resolve_map(path: Path, record: Mapping[str, Any], where: str) -> str:
    if isinstance(found := record.get("map"), str) and (path.parent / found).is_file():
        return str(path.parent / found)
    raise SaccadeError(
        f"{where}: the map {found!r} is not a file in the same folder; give the map before it: "
        f"--data MAP.xml {path.name}"
    )


def _validate_route(route: Route, where: str) -> None:
    world = load_world(route.map)
    for pose in route.path:
        if pose.place not in world.items:
            raise SaccadeError(
                f"{where}: {pose.x}, {pose.y} is not a place of the map {world.name}; is it another map?"
            )
    try:
        [*route.iter_rows(augment=False, mirror=False)]
    except SaccadeError as error:
        raise SaccadeError(f"{where}: {error}") from None


def hash_routes(corpus: Corpus) -> str:
    """Identify the routes of a corpus and its maps in keys of the cache."""
    digest = blake2b(repr((VERSION, corpus.examples, len(corpus.files))).encode(), digest_size=16)
    if corpus.files[0].startswith(EMBEDDED_PREFIX):
        digest.update(generated_worlds.get_version(corpus.files[0].removeprefix(EMBEDDED_PREFIX)).encode())
        return digest.hexdigest()
    maps = {route.map for route in read_routes(corpus)}
    for file in (corpus.files[-1], *sorted(maps)):
        digest.update(f"{file} {hash_file(Path(file))}".encode())
    return digest.hexdigest()
