"""Pictures of coloured shapes, made here: one with its class, or some with a sentence that names them in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
    colour = COLOURS[shape.colour]
    if shape.kind == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape.kind == "square":
        pen.rectangle((x - 0.85 * r, y - 0.85 * r, x + 0.85 * r, y + 0.85 * r), fill=colour)
    elif shape.kind == "triangle":
        pen.polygon([(x, y - r), (x + r, y + 0.9 * r), (x - r, y + 0.9 * r)], fill=colour)
    else:
        pen.rectangle((x - r, y - 0.3 * r, x + r, y + 0.3 * r), fill=colour)
        pen.rectangle((x - 0.3 * r, y - r, x + 0.3 * r, y + r), fill=colour)
