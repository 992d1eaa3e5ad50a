"""Questions about pictures of coloured shapes, made here: which colour, which shape, what is beside, how many.

A question alone does not tell its answer: all colours, shapes and numbers are drawn alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from saccade.data.shapes import COLOURS, KINDS, PLACES, Shape, drawn, placed

NUMBERS = ("zero", "one", "two")
BESIDE = {"left": -1, "right": 1}


class Asked(NamedTuple):
    """A question with its answer, and the field of the board (None: no single one) that has to be seen."""

    question: str
    answer: str
    place: int | None


def questions(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, dict[str, str]]]:
    """Pictures of three or four shapes in the fields of a 3 x 3 board, with a question and its answer.

    Those that are held out are of other boards: one in ten, told by itself, is never trained on.
    """
    for _, asked, picture in boards(count, seed=seed, heldout=heldout):
        yield picture, {"question": asked.question, "answer": asked.answer}


def boards(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[dict[int, Shape], Asked, Image.Image]]:
    """The same with the shapes by their fields."""
    rng = random.Random(f"questions {seed} {heldout}")
    while count:
        board = {place: placed(place, rng) for place in sorted(rng.sample(range(PLACES**2), rng.randint(3, 4)))}
        [ask] = rng.choices((colour, shape, beside, how_many), (3, 3, 4, 1))  # what is seldom possible is tried often
        asked = ask(board, rng)
        told = " ".join(f"{place} {one.colour} {one.kind}" for place, one in board.items())
        if asked is not None and (random.Random(told).random() < 0.1) == heldout:
            count -= 1
            yield board, asked, drawn(list(board.values()), rng)


def colour(board: dict[int, Shape], rng: random.Random) -> Asked | None:
    """Of a shape that is there once."""
    place = rng.choice([*board])
    kind = board[place].kind
    if [one.kind for one in board.values()].count(kind) > 1:
        return None
    return Asked(f"what colour is the {kind} ?", board[place].colour, place)


def shape(board: dict[int, Shape], rng: random.Random) -> Asked | None:
    """Of a colour that is there once."""
    place = rng.choice([*board])
    paint = board[place].colour
    if [one.colour for one in board.values()].count(paint) > 1:
        return None
    return Asked(f"what shape is {paint} ?", board[place].kind, place)


def beside(board: dict[int, Shape], rng: random.Random) -> Asked | None:
    """What stands in the next field to the left or right of a shape that is there once."""
    side, place = rng.choice([*BESIDE]), rng.choice([*board])
    there = place + BESIDE[side]
    one = board[place]
    alone = [(other.colour, other.kind) for other in board.values()].count((one.colour, one.kind)) == 1
    if there // PLACES != place // PLACES or there not in board or not alone:
        return None
    return Asked(f"what shape is {side} of the {one.colour} {one.kind} ?", board[there].kind, there)


def how_many(board: dict[int, Shape], rng: random.Random) -> Asked | None:
    """Of a colour or a shape: none, one or two, of which each is asked for about as often."""
    wanted = rng.randrange(len(NUMBERS))
    counts = {name: sum(name in (one.colour, one.kind) for one in board.values()) for name in (*COLOURS, *KINDS)}
    names = [name for name, count in counts.items() if count == wanted]
    if not names:
        return None
    name = rng.choice(names)
    called = f"{name} shapes" if name in COLOURS else f"{name}{'es' if name == 'cross' else 's'}"
    return Asked(f"how many {called} are there ?", NUMBERS[wanted], None)
