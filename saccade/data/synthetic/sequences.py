"""Rows of letters to copy or to reverse: the right attention is known, the diagonal or the antidiagonal."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

from saccade.data.synthetic.heldout import is_heldout


def letters(
    count: int, *, seed: int, reverse: bool = False, heldout: bool = False, lengths: tuple[int, int] = (4, 12)
) -> Iterator[tuple[str, str]]:
    """Pairs of `lengths` letters, from the first to the second; one row in ten, chosen by its own hash, is held out."""
    rng = random.Random(f"letters {seed}")
    while count:
        text = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(*lengths)))
        if is_heldout(text) == heldout:
            yield text, text[::-1] if reverse else text
            count -= 1


# ---- Sets of numbers, in no order that means anything, and whether two of them make a sum.


LARGEST = 20  # from 1 on
SUM = 20
SIZES = (3, 7)  # numbers of a set


def sums(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[str, str]]:
    """So many sets, half of which have two numbers that make 20; one set in ten, whatever its order, is held out."""
    rng = random.Random(f"sums {seed}")
    for number in range(count):
        yield _drawn(rng, wanted=number % 2 == 0, heldout=heldout)


def _drawn(rng: random.Random, *, wanted: bool, heldout: bool) -> tuple[str, str]:
    while True:
        numbers = rng.sample(range(1, LARGEST + 1), rng.randint(*SIZES))
        known = " ".join(map(str, sorted(numbers)))
        if makes_sum(numbers) == wanted and is_heldout(known) == heldout:
            return " ".join(map(str, numbers)), "yes" if wanted else "no"


def makes_sum(numbers: list[int]) -> bool:
    return any(SUM - number in numbers and 2 * number != SUM for number in numbers)


# ---- What visitors of a shop look at, one thing after the other: by habits that can be found out.


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
