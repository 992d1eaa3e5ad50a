"""Small worlds made here, and instructions for routes in them: "turn left, then walk to the chair"."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from saccade.data.sources.lines import did_you_mean
from saccade.data.worlds.maps import AHEAD, Place, Pose, Way, World, beyond, joined
from saccade.errors import SaccadeError

ITEMS = ("barstool", "chair", "easel", "hatrack", "lamp", "sofa")
FLOORS = ("blue", "brick", "concrete", "flower", "grass", "gravel", "wood", "yellow")
WALLS = ("butterfly", "fish", "tower")
SIDE = 5  # places from left to right, and from top to bottom
NUMBERS = {1: "one step", 2: "two steps", 3: "three steps", 4: "four steps"}
COUNTS = {"worlds": 18_000, "worlds-heldout": 300}  # routes, where nobody says how many
MAPS = {"worlds": 900, "worlds-heldout": 50}
Part = tuple[str, list[Pose]]  # what is said, and the poses that it leads to
Routes = Iterator[tuple[str, str, list[Pose]]]


def routes(name: str, examples: int | None) -> Routes:
    """Instructions, the names of their worlds, and the poses on the way; of held-out routes no world is trained in."""
    rng = random.Random(f"routes {_known(name)}")
    for number in range(examples or COUNTS[name]):
        where = f"{name}/{number % MAPS[name]}"
        pose = rng.choice(world(where).poses)
        said, path = [], [pose]
        for _ in range(rng.randint(1, 2)):
            if (part := _part(world(where), path, rng)) is None:
                break
            said.append(part[0])
            path += part[1]
        yield rng.choice([", then ", " and "]).join(said), where, path


@lru_cache(maxsize=1024)
def world(name: str) -> World:
    """One of the worlds: a maze on a square board, whose rows and columns have floors of their own."""
    kind, _, number = name.partition("/")
    if not number.isdecimal() or int(number) >= MAPS[_known(kind)]:
        raise SaccadeError(f"no embedded world {name!r}; expected {kind}/0 to {kind}/{MAPS[kind] - 1}")
    rng = random.Random(name)
    places = [(x, y) for y in range(SIDE) for x in range(SIDE)]
    items = {place: rng.choice(ITEMS) if rng.random() < 0.3 else "" for place in places}
    floors = {(axis, n): rng.choice(FLOORS) for axis in "xy" for n in range(SIDE)}
    ways = {}
    for one, other in _maze(places, rng):
        floor = floors["y", one[1]] if one[1] == other[1] else floors["x", one[0]]
        ways[one, other] = Way(floor, WALLS[min(one[0] + one[1], 2 * SIDE - 3) * len(WALLS) // (2 * SIDE - 2)])
    return joined(name, items, ways, where=name)


def version(name: str) -> str:
    """What the routes depend on: the text of our code."""
    code = sha256()
    for file in ("small_maps.py", "maps.py", "routes.py"):
        code.update(Path(__file__).with_name(file).read_bytes())
    return f"{_known(name)} {code.hexdigest()}"


def _known(name: str) -> str:
    if name not in COUNTS:
        known = ", ".join(f"embedded:{other}" for other in COUNTS)
        raise SaccadeError(f"no embedded routes {name!r}{did_you_mean(name, COUNTS)} (known: {known})")
    return name


def _maze(places: list[Place], rng: random.Random) -> list[tuple[Place, Place]]:
    """Ways that join all places without a circle, and one in three of the others."""
    ways = [(one, beyond(one, to)) for one in places for to in (90, 180) if beyond(one, to) in places]
    rng.shuffle(ways)
    group = {place: place for place in places}

    def first(place: Place) -> Place:
        while group[place] != place:
            place = group[place]
        return place

    chosen = []
    for one, other in ways:
        if first(one) != first(other):
            group[first(one)] = first(other)
            chosen.append((one, other))
        elif rng.random() < 1 / 3:
            chosen.append((one, other))
    return chosen


# ---- what can be said at a pose


def _part(world: World, path: list[Pose], rng: random.Random) -> Part | None:
    """One thing to do that makes sense where one stands; who has just turned does not turn again, which might undo it.

    There is nothing where one has turned to a wall.
    """
    pose, turned = path[-1], len(path) > 1 and path[-1].place == path[-2].place
    ahead = _ahead(world, pose)
    turns: list[Callable[[], Part | None]] = [lambda: _turn(pose, rng), lambda: _face(world, pose, rng)]
    kinds: list[Callable[[], Part | None]] = [
        *([] if turned else turns),
        lambda: _steps(ahead, rng),
        lambda: _item(world, ahead, rng),
        lambda: _end(ahead, rng),
        lambda: _crossing(world, ahead, rng),
    ]
    rng.shuffle(kinds)
    return next((found for kind in kinds if (found := kind()) is not None), None)


def _ahead(world: World, pose: Pose) -> list[Pose]:
    poses = []
    while (after := world.moved(pose, "forward")) != pose:
        pose = after
        poses.append(pose)
    return poses


def _turn(pose: Pose, rng: random.Random) -> Part:
    name, degrees = rng.choice([("left", 270), ("right", 90), ("around", 180)])
    verb = rng.choice(["turn", "turn", "go"]) if name != "around" else "turn"
    between = [pose.turned(90)] if degrees == 180 else []
    return f"{verb} {name}", [*between, pose.turned(degrees)]


def _face(world: World, pose: Pose, rng: random.Random) -> Part | None:
    """A floor that only one of the ways from here has, which is not the one ahead."""
    ways = {to: way.floor for to in AHEAD if (way := world.way(pose.place, to))}
    alone = [to for to, floor in ways.items() if [*ways.values()].count(floor) == 1 and to != pose.to]
    if not alone:
        return None
    to = rng.choice(alone)
    verb = rng.choice(["face the", "turn to the", "turn onto the"])
    between = [pose.turned(90)] if (to - pose.to) % 360 == 180 else []
    return f"{verb} {ways[to]} {rng.choice(['path', 'floor', 'hall'])}", [*between, Pose(*pose.place, to)]


def _steps(ahead: list[Pose], rng: random.Random) -> Part | None:
    if not ahead:
        return None
    count = rng.randint(1, len(ahead))
    return f"{rng.choice(['go', 'walk', 'move'])} forward {NUMBERS[count]}", ahead[:count]


def _item(world: World, ahead: list[Pose], rng: random.Random) -> Part | None:
    there = {world.items[pose.place]: n for n, pose in reversed([*enumerate(ahead, start=1)])}
    there.pop("", None)
    if not there:
        return None
    item = rng.choice([*there])
    return f"{rng.choice(['walk to', 'go forward to', 'move until you reach'])} the {item}", ahead[: there[item]]


def _end(ahead: list[Pose], rng: random.Random) -> Part | None:
    if len(ahead) < 2:
        return None
    return f"{rng.choice(['go', 'walk'])} to the {rng.choice(['end', 'wall'])}", ahead


def _crossing(world: World, ahead: list[Pose], rng: random.Random) -> Part | None:
    """The first place at which a way with a certain floor goes off to a side."""
    there: dict[str, int] = {}
    for n, pose in enumerate(ahead, start=1):
        for way in (world.way(pose.place, pose.turned(turn).to) for turn in (90, 270)):
            if way is not None:
                there.setdefault(way.floor, n)
    if not there:
        return None
    floor = rng.choice([*there])
    words = rng.choice([f"walk until you reach the {floor} path", f"go forward to the {floor} hall"])
    return words, ahead[: there[floor]]
