"""What visitors of a shop look at, one thing after the other: by habits that can be found out."""

from __future__ import annotations

import random
from collections.abc import Iterator

from saccade.data.heldout import is_heldout

SHELVES = ("book", "cup", "hat", "lamp", "pen", "toy")
THINGS = 10  # on each shelf
HABITS = (1, 2)  # things that a visitor goes on along a shelf
LENGTHS = (6, 12)


def sessions(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """So many visits: each goes along two shelves, on each by a habit of its own, and turns from one to the other.

    After some things, what comes next is one of two. One visit in ten, chosen by its own hash, is held out.
    """
    rng = random.Random(f"sessions {seed}")
    while count:
        text = _visit(rng)
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def _visit(rng: random.Random) -> str:
    shelves = rng.sample(SHELVES, 2)
    places, habits = [rng.randrange(THINGS) for _ in shelves], [rng.choice(HABITS) for _ in shelves]
    seen = []
    for number in range(rng.randint(*LENGTHS)):
        which = number % 2 if number < 4 else rng.randrange(2)  # each shelf twice, so that its habit is known
        seen.append(f"{shelves[which]}{places[which]}")
        places[which] = (places[which] + habits[which]) % THINGS
    return " ".join(seen)
