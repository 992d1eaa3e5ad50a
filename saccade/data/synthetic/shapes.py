"""Generated pictures of colored shapes: one with its class, several with a caption, or with a question and answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from PIL import Image, ImageDraw

COLORS = {"red": (214, 48, 49), "green": (39, 174, 96), "blue": (52, 101, 205), "yellow": (241, 196, 15)}
KINDS = ("circle", "square", "triangle", "cross")
PICTURE_SIDE = 48  # pixels
GRID_SIZE = 3  # rows and columns of cells in a scene
SUPERSAMPLING = 4  # for smooth edges


class Shape(NamedTuple):
    color: str
    kind: str
    x: float  # center, as a fraction of the side of the picture
    y: float
    radius: float


def generate_shapes(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, str]]:
    """Yield pictures of one shape at a random place, and its class, such as `red circle`."""
    rng = random.Random(f"shapes {seed} {heldout}")
    for _ in range(count):
        radius = rng.uniform(0.1, 0.22)
        x, y = (rng.uniform(radius, 1 - radius) for _ in range(2))
        shape = Shape(rng.choice([*COLORS]), rng.choice(KINDS), x, y, radius)
        yield render_shapes([shape], rng), f"{shape.color} {shape.kind}"


def generate_scenes(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, str]]:
    """Yield pictures of two to four shapes in the cells of a 3 x 3 grid, and a caption that lists them row by row.

    The caption decides whether a picture is held out, one in ten.
    """
    rng = random.Random(f"scenes {seed} {heldout}")
    while count:
        places = sorted(rng.sample(range(GRID_SIZE**2), rng.randint(2, 4)))
        shapes = [sample_shape(place, rng) for place in places]
        text = " , ".join(f"{shape.color} {shape.kind}" for shape in shapes)
        if (random.Random(text).random() < 0.1) == heldout:
            count -= 1
            yield render_shapes(shapes, rng), text


def sample_shape(place: int, rng: random.Random) -> Shape:
    """Sample a shape near the center of a cell of the grid."""
    x, y = ((part + 0.5 + rng.uniform(-0.1, 0.1)) / GRID_SIZE for part in (place % GRID_SIZE, place // GRID_SIZE))
    return Shape(rng.choice([*COLORS]), rng.choice(KINDS), x, y, rng.uniform(0.09, 0.13))


def render_shapes(shapes: list[Shape], rng: random.Random) -> Image.Image:
    side = PICTURE_SIDE * SUPERSAMPLING
    grey = rng.randint(200, 250)
    picture = Image.new("RGB", (side, side), (grey, grey, grey))
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        _draw_shape(pen, shape, side)
    return picture.resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.BOX)


def _draw_shape(pen: ImageDraw.ImageDraw, shape: Shape, side: int) -> None:
    x, y, r = (value * side for value in (shape.x, shape.y, shape.radius))
    DRAW[shape.kind](pen, x, y, r, COLORS[shape.color])


def _draw_cross(pen: ImageDraw.ImageDraw, x: float, y: float, r: float, color: tuple[int, int, int]) -> None:
    pen.rectangle((x - r, y - 0.3 * r, x + r, y + 0.3 * r), fill=color)
    pen.rectangle((x - 0.3 * r, y - r, x + 0.3 * r, y + r), fill=color)


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


# ---- Questions about pictures of shapes: which color, which shape, which neighbor, how many
#
# The question alone does not give its answer away: all answers are about equally frequent.


NUMBERS = ("zero", "one", "two")
SIDE_OFFSETS = {"left": -1, "right": 1}


class Question(NamedTuple):
    """A question with its answer, and the cell of the grid that shows it; None if it is not a single one."""

    question: str
    answer: str
    cell: int | None


def generate_questions(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, dict[str, str]]]:
    """Yield pictures of three or four shapes in the cells of a 3 x 3 grid, with a question and its answer.

    The shapes and their cells decide whether a picture is held out, one in ten.
    """
    for _, question, picture in generate_boards(count, seed=seed, heldout=heldout):
        yield picture, {"question": question.question, "answer": question.answer}


def generate_boards(
    count: int, *, seed: int, heldout: bool = False
) -> Iterator[tuple[dict[int, Shape], Question, Image.Image]]:
    """Yield the shapes by cell, a question and the picture."""
    rng = random.Random(f"questions {seed} {heldout}")
    while count:
        board = {
            place: sample_shape(place, rng) for place in sorted(rng.sample(range(GRID_SIZE**2), rng.randint(3, 4)))
        }
        # kinds that are often impossible have a higher weight
        [ask] = rng.choices((ask_color, ask_shape, ask_neighbor, ask_count), (3, 3, 4, 1))
        question = ask(board, rng)
        description = " ".join(f"{place} {one.color} {one.kind}" for place, one in board.items())
        if question is not None and (random.Random(description).random() < 0.1) == heldout:
            count -= 1
            yield board, question, render_shapes(list(board.values()), rng)


def ask_color(board: dict[int, Shape], rng: random.Random) -> Question | None:
    """Ask for the color of a kind of shape that occurs once."""
    place = rng.choice([*board])
    kind = board[place].kind
    if [one.kind for one in board.values()].count(kind) > 1:
        return None
    return Question(f"what colour is the {kind} ?", board[place].color, place)


def ask_shape(board: dict[int, Shape], rng: random.Random) -> Question | None:
    """Ask for the shape of a color that occurs once."""
    place = rng.choice([*board])
    paint = board[place].color
    if [one.color for one in board.values()].count(paint) > 1:
        return None
    return Question(f"what shape is {paint} ?", board[place].kind, place)


def ask_neighbor(board: dict[int, Shape], rng: random.Random) -> Question | None:
    """Ask for the shape left or right of a shape that occurs once."""
    side, place = rng.choice([*SIDE_OFFSETS]), rng.choice([*board])
    there = place + SIDE_OFFSETS[side]
    one = board[place]
    alone = [(other.color, other.kind) for other in board.values()].count((one.color, one.kind)) == 1
    if there // GRID_SIZE != place // GRID_SIZE or there not in board or not alone:
        return None
    return Question(f"what shape is {side} of the {one.color} {one.kind} ?", board[there].kind, there)


def ask_count(board: dict[int, Shape], rng: random.Random) -> Question | None:
    """Ask for the number of shapes of a color or kind: zero, one or two, each about equally often."""
    number = rng.randrange(len(NUMBERS))
    counts = {name: sum(name in (one.color, one.kind) for one in board.values()) for name in (*COLORS, *KINDS)}
    names = [name for name, count in counts.items() if count == number]
    if not names:
        return None
    name = rng.choice(names)
    called = f"{name} shapes" if name in COLORS else f"{name}{'es' if name == 'cross' else 's'}"
    return Question(f"how many {called} are there ?", NUMBERS[number], None)
