"""Sets of numbers, in no order that means anything, and whether two of them make a sum."""

from __future__ import annotations

import random
from collections.abc import Iterator

from saccade.data.heldout import is_heldout

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
