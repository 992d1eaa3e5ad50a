"""Generated symbol sequences: letters to copy or reverse, sets of numbers, sessions of a shop, names of numbers.

For letters the ideal attention is known: the diagonal or the antidiagonal.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

from saccade.data.synthetic.heldout import is_heldout


def generate_letters(
    count: int, *, seed: int, reverse: bool = False, heldout: bool = False, lengths: tuple[int, int] = (4, 12)
) -> Iterator[tuple[str, str]]:
    """Yield `count` pairs of letters and their copy or reversal; `lengths` are minimum and maximum, inclusive."""
    rng = random.Random(f"letters {seed}")
    while count:
        text = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(*lengths)))
        if is_heldout(text) == heldout:
            yield text, text[::-1] if reverse else text
            count -= 1


# ---- Sets of numbers in random order, labelled by whether two of them have a given sum


MAX_NUMBER = 20
TARGET_SUM = 20
SET_SIZES = (3, 7)  # minimum and maximum


def generate_sums(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[str, str]]:
    """Yield `count` sets of one split and "yes" or "no", in turn: whether two of the numbers add up to 20."""
    rng = random.Random(f"sums {seed}")
    for number in range(count):
        yield _sample_set(rng, positive=number % 2 == 0, heldout=heldout)


def _sample_set(rng: random.Random, *, positive: bool, heldout: bool) -> tuple[str, str]:
    while True:
        numbers = rng.sample(range(1, MAX_NUMBER + 1), rng.randint(*SET_SIZES))
        known = " ".join(map(str, sorted(numbers)))
        if has_target_sum(numbers) == positive and is_heldout(known) == heldout:
            return " ".join(map(str, numbers)), "yes" if positive else "no"


def has_target_sum(numbers: list[int]) -> bool:
    return any(TARGET_SUM - number in numbers and 2 * number != TARGET_SUM for number in numbers)


# ---- Items that visitors of a shop view one after the other, by rules that can be learned


CATEGORIES = ("book", "cup", "hat", "lamp", "pen", "toy")
ITEMS_PER_CATEGORY = 10
STRIDES = (1, 2)  # from one item of a category to the next
SESSION_LENGTHS = (6, 12)


def generate_sessions(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """Yield `count` sessions of one split: a visitor alternates at random between two categories, each with its stride.

    So after the first items, the next one is one of two.
    """
    rng = random.Random(f"sessions {seed}")
    while count:
        text = _generate_session(rng)
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def _generate_session(rng: random.Random) -> str:
    shelves = rng.sample(CATEGORIES, 2)
    places, habits = [rng.randrange(ITEMS_PER_CATEGORY) for _ in shelves], [rng.choice(STRIDES) for _ in shelves]
    seen = []
    for number in range(rng.randint(*SESSION_LENGTHS)):
        which = number % 2 if number < 4 else rng.randrange(2)  # each category twice, so that its stride is known
        seen.append(f"{shelves[which]}{places[which]}")
        places[which] = (places[which] + habits[which]) % ITEMS_PER_CATEGORY
    return " ".join(seen)


# ---- Numbers, digit by digit, and their names: how many words a digit stands for depends on its place and neighbours


MAX_DIGITS = 6
UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def generate_numbers(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[str, str]]:
    """Yield `count` numbers of one split as digits, such as "4 0 7 1", and as words, "four thousand seventy one"."""
    rng = random.Random(f"numbers {seed}")
    while count:
        number = rng.randrange(10 ** rng.randint(2, MAX_DIGITS))
        text = " ".join(str(number))
        if is_heldout(text) == heldout:
            yield text, " ".join(spell_number(number))
            count -= 1


def spell_number(number: int) -> list[str]:
    """Return the English words of a number below a million, without "and"."""
    if number < len(UNITS):
        return [UNITS[number]]
    if number < 100:
        return [TENS[number // 10 - 2], *([UNITS[number % 10]] if number % 10 else [])]
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = spell_number(number % size) if number % size else []
    return [*spell_number(number // size), name, *rest]
