"""Generated grid worlds, and instructions for routes in them: "turn left, then walk to the chair"."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import lru_cache

from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade_worlds.navigation.maps import DIRECTIONS, Edge, GridWorld, Place, Pose, build_world, get_neighbor

ITEMS = ("barstool", "chair", "easel", "hatrack", "lamp", "sofa")
FLOORS = ("blue", "brick", "concrete", "flower", "grass", "gravel", "wood", "yellow")
WALLS = ("butterfly", "fish", "tower")
# Part of the keys of cached data and of the state that a run resumes from. Replace it by any other text when the routes
# change (tests/data/synthetic/test_versions.py fails then). It is a hash of the code of 0.8, whose routes are the same.
VERSION = "147f861f72e3775027034690348682d301f98c73a076b0b0427f316165b9750d"
GRID_SIZE = 5  # places along each side
STEP_WORDS = {1: "one step", 2: "two steps", 3: "three steps", 4: "four steps"}
DEFAULT_EXAMPLES = {"worlds": 18_000, "worlds-heldout": 300}  # number of routes, by default
NUM_WORLDS = {"worlds": 900, "worlds-heldout": 50}
RouteStep = tuple[str, list[Pose]]  # a phrase, and the poses that it leads through
Routes = Iterator[tuple[str, str, list[Pose]]]


def generate_routes(name: str, examples: int | None) -> Routes:
    """Yield instruction, name of the world, and poses of each route; held-out routes are in other worlds."""
    rng = random.Random(f"routes {_validate_name(name)}")
    for number in range(examples or DEFAULT_EXAMPLES[name]):
        where = f"{name}/{number % NUM_WORLDS[name]}"
        pose = rng.choice(generate_world(where).poses)
        phrases, path = [], [pose]
        for _ in range(rng.randint(1, 2)):
            if (step := _sample_step(generate_world(where), path, rng)) is None:
                break
            phrases.append(step[0])
            path += step[1]
        yield rng.choice([", then ", " and "]).join(phrases), where, path


@lru_cache(maxsize=1024)
def generate_world(name: str) -> GridWorld:
    """Generate a world: a maze on a square grid, with one floor for each row and column."""
    kind, _, number = name.partition("/")
    if not number.isdecimal() or int(number) >= NUM_WORLDS[_validate_name(kind)]:
        raise SaccadeError(f"no embedded world {name!r}; expected {kind}/0 to {kind}/{NUM_WORLDS[kind] - 1}")
    rng = random.Random(name)
    places = [(x, y) for y in range(GRID_SIZE) for x in range(GRID_SIZE)]
    items = {place: rng.choice(ITEMS) if rng.random() < 0.3 else "" for place in places}
    floors = {(axis, n): rng.choice(FLOORS) for axis in "xy" for n in range(GRID_SIZE)}
    edges = {}
    for one, other in _generate_maze(places, rng):
        floor = floors["y", one[1]] if one[1] == other[1] else floors["x", one[0]]
        edges[one, other] = Edge(
            floor, WALLS[min(one[0] + one[1], 2 * GRID_SIZE - 3) * len(WALLS) // (2 * GRID_SIZE - 2)]
        )
    return build_world(name, items, edges, where=name)


def get_version(name: str) -> str:
    """Identify the routes of a name in keys of the cache."""
    return f"{_validate_name(name)} {VERSION}"


def _validate_name(name: str) -> str:
    if name not in DEFAULT_EXAMPLES:
        known = ", ".join(f"embedded:{other}" for other in DEFAULT_EXAMPLES)
        raise SaccadeError(f"no embedded routes {name!r}{did_you_mean(name, DEFAULT_EXAMPLES)} (known: {known})")
    return name


def _generate_maze(places: list[Place], rng: random.Random) -> list[tuple[Place, Place]]:
    """Return the edges of a random spanning tree of the places, and one in three of the other edges."""
    edges = [(one, get_neighbor(one, to)) for one in places for to in (90, 180) if get_neighbor(one, to) in places]
    rng.shuffle(edges)
    group = {place: place for place in places}

    def first(place: Place) -> Place:
        while group[place] != place:
            place = group[place]
        return place

    chosen = []
    for one, other in edges:
        if first(one) != first(other):
            group[first(one)] = first(other)
            chosen.append((one, other))
        elif rng.random() < 1 / 3:
            chosen.append((one, other))
    return chosen


# ---- Phrases of an instruction


def _sample_step(world: GridWorld, path: list[Pose], rng: random.Random) -> RouteStep | None:
    """Sample a phrase that is possible at the last pose; None after a turn towards a wall.

    Two turns never follow each other, since the second might undo the first.
    """
    pose, turned = path[-1], len(path) > 1 and path[-1].place == path[-2].place
    ahead = _list_poses_ahead(world, pose)
    turns: list[Callable[[], RouteStep | None]] = [
        lambda: _sample_turn(pose, rng),
        lambda: _sample_facing(world, pose, rng),
    ]
    candidates: list[Callable[[], RouteStep | None]] = [
        *([] if turned else turns),
        lambda: _sample_distance(ahead, rng),
        lambda: _sample_item(world, ahead, rng),
        lambda: _walk_to_end(ahead, rng),
        lambda: _sample_crossing(world, ahead, rng),
    ]
    rng.shuffle(candidates)
    return next((found for kind in candidates if (found := kind()) is not None), None)


def _list_poses_ahead(world: GridWorld, pose: Pose) -> list[Pose]:
    poses = []
    while (after := world.move(pose, "forward")) != pose:
        pose = after
        poses.append(pose)
    return poses


def _sample_turn(pose: Pose, rng: random.Random) -> RouteStep:
    name, degrees = rng.choice([("left", 270), ("right", 90), ("around", 180)])
    verb = rng.choice(["turn", "turn", "go"]) if name != "around" else "turn"
    between = [pose.turn(90)] if degrees == 180 else []
    return f"{verb} {name}", [*between, pose.turn(degrees)]


def _sample_facing(world: GridWorld, pose: Pose, rng: random.Random) -> RouteStep | None:
    """Turn to a floor that only one edge of this place has, which is not the one ahead."""
    edges = {to: edge.floor for to in DIRECTIONS if (edge := world.get_edge(pose.place, to))}
    alone = [to for to, floor in edges.items() if [*edges.values()].count(floor) == 1 and to != pose.direction]
    if not alone:
        return None
    to = rng.choice(alone)
    verb = rng.choice(["face the", "turn to the", "turn onto the"])
    between = [pose.turn(90)] if (to - pose.direction) % 360 == 180 else []
    return f"{verb} {edges[to]} {rng.choice(['path', 'floor', 'hall'])}", [*between, Pose(*pose.place, to)]


def _sample_distance(ahead: list[Pose], rng: random.Random) -> RouteStep | None:
    if not ahead:
        return None
    count = rng.randint(1, len(ahead))
    return f"{rng.choice(['go', 'walk', 'move'])} forward {STEP_WORDS[count]}", ahead[:count]


def _sample_item(world: GridWorld, ahead: list[Pose], rng: random.Random) -> RouteStep | None:
    there = {world.items[pose.place]: n for n, pose in reversed([*enumerate(ahead, start=1)])}
    there.pop("", None)
    if not there:
        return None
    item = rng.choice([*there])
    return f"{rng.choice(['walk to', 'go forward to', 'move until you reach'])} the {item}", ahead[: there[item]]


def _walk_to_end(ahead: list[Pose], rng: random.Random) -> RouteStep | None:
    if len(ahead) < 2:
        return None
    return f"{rng.choice(['go', 'walk'])} to the {rng.choice(['end', 'wall'])}", ahead


def _sample_crossing(world: GridWorld, ahead: list[Pose], rng: random.Random) -> RouteStep | None:
    """Walk to the first place where an edge with a certain floor leads to the side."""
    there: dict[str, int] = {}
    for n, pose in enumerate(ahead, start=1):
        for edge in (world.get_edge(pose.place, pose.turn(turn).direction) for turn in (90, 270)):
            if edge is not None:
                there.setdefault(edge.floor, n)
    if not there:
        return None
    floor = rng.choice([*there])
    words = rng.choice([f"walk until you reach the {floor} path", f"go forward to the {floor} hall"])
    return words, ahead[: there[floor]]
