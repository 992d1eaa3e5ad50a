"""Instructions with the routes that they mean, from files of SAIL's form or made here, as rows of text.

A corpus is a map and a .jsonl file with `instruction` and `path`, a list of [x, y, direction]; or such a file alone,
whose lines name their `map` beside it; or `embedded:worlds`. The source of a row is a line of JSON,
which is also what a trained run is given: {"instruction": ..., "map": FILE, "start": [x, y, direction]}.
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
from saccade.data.sources.pairs import PREFIX, file_key
from saccade.data.sources.table import records
from saccade.data.worlds import small_maps as small_worlds
from saccade.data.worlds.maps import AHEAD, Pose, World, actions_between, half_turns_right, mirrored, read_map
from saccade.errors import SaccadeError

Row = tuple[int, str, str]
VERSION = 3  # of how routes become rows; what is cached of another version is made again
OPEN = -1  # a direction that nobody has set
EXPECTED = 'expected {"instruction": "...", "map": "FILE.xml", "start": [x, y, direction]}'
WRITTEN = re.compile(r" *-?[0-9]{1,6} *, *-?[0-9]{1,6} *, *[0-9]{1,3} *")  # a pose as it is typed: 3, 4, 90
EXCHANGED = {"left": "right", "right": "left"}
SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Walk:
    """What somebody who walks is told: where, in which world, and what to do."""

    instruction: str
    map: str
    start: Pose
    mirrored: bool = False

    @property
    def world(self) -> World:
        return world_of(self.map, mirrored=self.mirrored)

    def line(self) -> str:
        told: dict[str, Any] = {"instruction": self.instruction, "map": self.map, "start": self.start}
        return json.dumps(told | ({"mirrored": True} if self.mirrored else {}), ensure_ascii=False)

    def mirror(self) -> Walk:
        return Walk(exchanged(self.instruction), self.map, mirrored(self.start), mirrored=True)


def exchanged(words: str) -> str:
    """Left for right and right for left, wherever they are words."""
    return SIDES.sub(lambda found: EXCHANGED[found[0].lower()], words)


def world_of(name: str, *, mirrored: bool = False) -> World:
    """The world of a map: that of a file, or `embedded:NAME/NUMBER`."""
    made = small_worlds.world(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else read_map(name)
    return made.mirrored if mirrored else made


def parse_walk(line: str, *, where: str) -> Walk:
    """A line of JSON as it is given to a trained run."""
    try:
        told = json.loads(line)
    except ValueError as error:
        raise SaccadeError(f"{where} is no JSON ({error}); {EXPECTED}") from None
    if not isinstance(told, dict):
        raise SaccadeError(f"{where} is no JSON object; {EXPECTED}")
    for key in ("instruction", "map"):
        if not isinstance(told.get(key), str):
            raise SaccadeError(f"{where} has no text under {key!r}, got {told.get(key)!r}; {EXPECTED}")
    walk = Walk(told["instruction"], told["map"], pose_of(told.get("start"), where), bool(told.get("mirrored")))
    if walk.start not in walk.world.numbers:
        raise SaccadeError(
            f"{where}: nobody can stand at {walk.start} in the map {walk.world.name}; expected one of its places, and "
            f"a direction of {', '.join(map(str, AHEAD))}"
        )
    return walk


def pose_of(value: Any, where: str, *, open_too: bool = False) -> Pose:
    directions = (*AHEAD, OPEN) if open_too else tuple(AHEAD)
    if isinstance(value, str) and WRITTEN.fullmatch(value):
        value = [int(part) for part in value.split(",")]
    numbers = isinstance(value, list | tuple) and len(value) == 3 and all(type(one) is int for one in value)
    if not numbers or value[2] not in directions:
        raise SaccadeError(
            f"{where}: {value!r} is no pose; expected [x, y, direction], whole numbers with a direction of "
            f"{', '.join(map(str, directions))}"
        )
    return Pose(*value)


@dataclass(frozen=True)
class Route:
    """A line of a corpus: an instruction and the poses of the route; the direction of the first one may be open."""

    number: int
    instruction: str
    map: str
    path: tuple[Pose, ...]

    def rows(self, *, varied: bool, mirror: bool) -> Iterator[Row]:
        """As it is tested, from one direction; or varied, from all that are open, and in the mirrored world too."""
        first = self.path[0]
        if first.to != OPEN:
            directions = [first.to]
        elif varied:
            directions = list(AHEAD)
        else:  # told by the instruction and the place alone, so that it gives nothing away
            drawn = blake2b(f"{self.instruction} {first.x} {first.y}".encode(), digest_size=1).digest()[0]
            directions = [[*AHEAD][drawn % len(AHEAD)]]
        for to in directions:
            start = Pose(first.x, first.y, to)
            actions = actions_between([start, *self.path[1:]])
            walk = Walk(self.instruction, self.map, start)
            yield self.number, walk.line(), " ".join(actions)
            if varied and mirror:
                turned = half_turns_right(exchanged(" ".join(actions)).split())
                yield self.number, walk.mirror().line(), " ".join(turned)


def read_routes(corpus: Corpus) -> Iterator[Route]:
    name = corpus.files[0]
    if name.startswith(PREFIX):
        return _made(name.removeprefix(PREFIX), corpus.examples)
    return islice(_read(corpus), corpus.examples)


def _made(name: str, examples: int | None) -> Iterator[Route]:
    for number, (instruction, world, path) in enumerate(small_worlds.routes(name, examples), start=1):
        yield Route(number, instruction, f"{PREFIX}{world}", tuple(path))


def _read(corpus: Corpus) -> Iterator[Route]:
    path = Path(corpus.files[-1])
    for number, record in records(path, is_header=lambda _: True):
        where = f"{path}:{number}"
        instruction, poses = record.get("instruction"), record.get("path")
        if not isinstance(instruction, str) or not isinstance(poses, list) or not poses:
            raise SaccadeError(
                f"{where} has no route; expected a text 'instruction' and a list 'path' of [x, y, direction]"
            )
        route = Route(
            number,
            instruction,
            corpus.files[0] if len(corpus.files) > 1 else _map_beside(path, record, where),
            tuple(pose_of(pose, where, open_too=not n) for n, pose in enumerate(poses)),
        )
        _check(route, where)
        yield route


def _map_beside(path: Path, record: Mapping[str, Any], where: str) -> str:
    if isinstance(found := record.get("map"), str) and (path.parent / found).is_file():
        return str(path.parent / found)
    raise SaccadeError(
        f"{where}: the map {found!r} is no file beside it; give the map before it: --data MAP.xml {path.name}"
    )


def _check(route: Route, where: str) -> None:
    world = world_of(route.map)
    for pose in route.path:
        if pose.place not in world.items:
            raise SaccadeError(f"{where}: {pose.x}, {pose.y} is no place of the map {world.name}; is it another map?")
    try:
        [*route.rows(varied=False, mirror=False)]
    except SaccadeError as error:
        raise SaccadeError(f"{where}: {error}") from None


def routes_key(corpus: Corpus) -> str:
    """A hash of everything that decides which routes there are, maps included."""
    digest = blake2b(repr((VERSION, corpus.examples, len(corpus.files))).encode(), digest_size=16)
    if corpus.files[0].startswith(PREFIX):
        digest.update(small_worlds.version(corpus.files[0].removeprefix(PREFIX)).encode())
        return digest.hexdigest()
    maps = {route.map for route in read_routes(corpus)}
    for file in (corpus.files[-1], *sorted(maps)):
        digest.update(f"{file} {file_key(Path(file))}".encode())
    return digest.hexdigest()
