"""Pictures of coloured shapes, made here: one with its class, or some with a sentence that names them in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from PIL import Image, ImageDraw

COLOURS = {"red": (214, 48, 49), "green": (39, 174, 96), "blue": (52, 101, 205), "yellow": (241, 196, 15)}
KINDS = ("circle", "square", "triangle", "cross")
SIDE = 48  # pixels of a picture
PLACES = 3  # rows and columns of a scene
DRAWN = 4  # times larger while it is drawn, so that edges become smooth


class Shape(NamedTuple):
    colour: str
    kind: str
    x: float  # of its middle, in sides of the picture
    y: float
    radius: float


def one_shape(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, str]]:
    """Pictures of one shape anywhere, and what it is: `red circle`."""
    rng = random.Random(f"shapes {seed} {heldout}")
    for _ in range(count):
        radius = rng.uniform(0.1, 0.22)
        x, y = (rng.uniform(radius, 1 - radius) for _ in range(2))
        shape = Shape(rng.choice([*COLOURS]), rng.choice(KINDS), x, y, radius)
        yield drawn([shape], rng), f"{shape.colour} {shape.kind}"


def scenes(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, str]]:
    """Pictures of two to four shapes in the fields of a 3 x 3 board, and what they are, row by row from the left.

    Those that are held out are of other boards: one in ten sentences, told by itself, is never trained on.
    """
    rng = random.Random(f"scenes {seed} {heldout}")
    while count:
        places = sorted(rng.sample(range(PLACES**2), rng.randint(2, 4)))
        shapes = [placed(place, rng) for place in places]
        text = " , ".join(f"{shape.colour} {shape.kind}" for shape in shapes)
        if (random.Random(text).random() < 0.1) == heldout:
            count -= 1
            yield drawn(shapes, rng), text


def placed(place: int, rng: random.Random) -> Shape:
    """A shape drawn at random, near the middle of a field of the board."""
    x, y = ((part + 0.5 + rng.uniform(-0.1, 0.1)) / PLACES for part in (place % PLACES, place // PLACES))
    return Shape(rng.choice([*COLOURS]), rng.choice(KINDS), x, y, rng.uniform(0.09, 0.13))


def drawn(shapes: list[Shape], rng: random.Random) -> Image.Image:
    side = SIDE * DRAWN
    grey = rng.randint(200, 250)
    picture = Image.new("RGB", (side, side), (grey, grey, grey))
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        _draw(pen, shape, side)
    return picture.resize((SIDE, SIDE), Image.Resampling.BOX)


def _draw(pen: ImageDraw.ImageDraw, shape: Shape, side: int) -> None:
    x, y, r = (value * side for value in (shape.x, shape.y, shape.radius))
    DRAW[shape.kind](pen, x, y, r, COLOURS[shape.colour])


def _draw_cross(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, colour: tuple[int, int, int]) -> None:
    pen.rectangle((x - r, y - 0.3 * r, x + r, y + 0.3 * r), fill=colour)
    pen.rectangle((x - 0.3 * r, y - r, x + 0.3 * r, y + r), fill=colour)


DRAW: dict[str, Callable[..., None]] = {
    "circle": lambda pen, x, y, r, colour: pen.ellipse((x - r, y - r, x + r, y + r), fill=colour),
    "square": lambda pen, x, y, r, colour: pen.rectangle(
        (x - 0.85 * r, y - 0.85 * r, x + 0.85 * r, y + 0.85 * r), fill=colour
    ),
    "triangle": lambda pen, x, y, r, colour: pen.polygon(
        [(x, y - r), (x + r, y + 0.9 * r), (x - r, y + 0.9 * r)], fill=colour
    ),
    "cross": _draw_cross,
}


# ---- Questions about pictures of coloured shapes, made here: which colour, which shape, what is beside, how many.
#
# A question alone does not tell its answer: all colours, shapes and numbers are drawn alike.


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
