"""Pictures of words, drawn here: in many fonts and colours, turned and bent, with shadows, noise and blur.

A picture depends on its word, on the fonts and on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

from saccade.errors import SaccadeError

LETTERS = "abdeghinorst"  # of the words of `spelled`
LONGEST = 5  # letters of such a word
OWN = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "STIXGeneralBol")
SIGNS = (  # colours of letters and ground of these words
    ((20, 20, 20), (240, 240, 235)), ((245, 245, 245), (15, 15, 20)), ((250, 250, 250), (20, 90, 170)),
    ((170, 20, 30), (245, 235, 210)), ((245, 200, 20), (30, 40, 60)), ((20, 60, 40), (200, 220, 190)),
)  # fmt: skip
HEIGHTS = (26, 32, 40)  # pixels of a font, before the picture is scaled
LEAST = 70  # how much brighter or darker letters are than what is behind them, of 255

Colour = tuple[int, int, int]


class Hand(NamedTuple):
    """How words are drawn: `roughness` from 0, plain, to 1, as on old signs; pairs of colours of letters and ground."""

    fonts: tuple[str, ...]
    roughness: float = 0.5
    colours: Sequence[tuple[Colour, Colour]] = ()  # drawn at random where there are none
    beside: float = 0.0  # the share of pictures with a strip of other letters at one edge, as where one was cut badly


def spelled(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, str]]:
    """Pictures of words of 3 to 5 letters of a small alphabet; one word in ten, told by itself, is held out."""
    rng, hand = random.Random(f"words {seed} {heldout}"), Hand(own_fonts(), 0.15, SIGNS)
    while count:
        word = "".join(rng.choices(LETTERS, k=rng.randint(3, LONGEST)))
        if (random.Random(word).random() < 0.1) == heldout:
            count -= 1
            yield rendered(word, hand, rng), word


def own_fonts() -> tuple[str, ...]:
    """Those that come with matplotlib."""
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return tuple(str(folder / f"{name}.ttf") for name in OWN)


def fonts_in(folder: str | Path) -> tuple[str, ...]:
    """All fonts of a folder and the folders in it that have Latin letters and digits."""
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".ttf", ".otf"))
    fonts = tuple(str(path) for path in found if _has_letters(path))
    if not fonts:
        raise SaccadeError(f"{folder} has no font with letters in it; expected files *.ttf or *.otf")
    return fonts


def rendered(word: str, hand: Hand, rng: random.Random) -> Image.Image:
    """A picture of the word alone, with a small margin."""
    noise = np.random.default_rng(rng.getrandbits(64))
    font = rng.choice(hand.fonts)
    letters = framed(bent(drawn(word, font, rng), hand.roughness, rng), rng)
    if hand.beside and rng.random() < hand.beside:
        letters = with_strip(letters, drawn(word[::-1], font, rng), rng)
    ink, ground = rng.choice(hand.colours) if hand.colours else two_colours(rng)
    picture = grounded(letters.size, ground, hand.roughness, noise)
    if rng.random() < hand.roughness / 2:
        shadow = ImageChops.offset(letters, rng.randint(1, 3), rng.randint(1, 3)).filter(ImageFilter.GaussianBlur(1))
        picture.paste(tuple(part // 3 for part in ground), mask=shadow)
    if rng.random() < hand.roughness / 2:
        outline = letters.filter(ImageFilter.MaxFilter(rng.choice((3, 5))))
        picture.paste(two_colours(rng)[0], mask=outline)
    picture.paste(grounded(letters.size, ink, hand.roughness / 2, noise), mask=letters)
    return worn(picture, hand.roughness, rng, noise)


def drawn(word: str, font: str, rng: random.Random) -> Image.Image:
    """White letters on black with much room around, close or wide, thin or thick."""
    pen = _font(font, rng.choice(HEIGHTS))
    gap, stroke = rng.choice((0, 0, 0, 1, 2, 4)), rng.choice((0, 0, 0, 1))
    wide, room = int(pen.getlength(word)) + gap * len(word), int(pen.size)
    picture = Image.new("L", (wide + 2 * room, 3 * room))
    canvas, x = ImageDraw.Draw(picture), float(room)
    for letter in word if gap else (word,):
        canvas.text((x, room), letter, fill=255, font=pen, stroke_width=stroke)
        x += pen.getlength(letter) + gap
    return picture


def bent(letters: Image.Image, roughness: float, rng: random.Random) -> Image.Image:
    """On a bow, sometimes; then its corners are moved, so that it is turned, leans, or is seen from the side."""
    wide, high = letters.size
    if rng.random() < roughness / 2:
        letters = _on_a_bow(letters, rng.uniform(-0.12, 0.12) * high)
    turn = rng.gauss(0, 0.08) * roughness * min(wide, 2 * high)
    lean, loose = rng.gauss(0, 0.15) * roughness * high, 0.06 * roughness * high
    corners = ((-lean, -turn), (lean, high - turn), (wide + lean, high + turn), (wide - lean, turn))
    moved = tuple(part + rng.uniform(-loose, loose) for corner in corners for part in corner)
    return letters.transform(letters.size, Image.Transform.QUAD, moved, Image.Resampling.BILINEAR)


def _on_a_bow(letters: Image.Image, most: float) -> Image.Image:
    """The middle is higher than the ends, or lower."""
    wide, high = letters.size
    shift = np.rint(most * (np.cos(np.linspace(-np.pi / 2, np.pi / 2, wide)) - 0.5)).astype(int)
    rows = (np.arange(high)[:, None] + shift) % high
    return Image.fromarray(np.take_along_axis(np.asarray(letters), rows, axis=0))


def framed(letters: Image.Image, rng: random.Random) -> Image.Image:
    """What is seen of the letters, with a margin on each side."""
    left, top, right, bottom = letters.getbbox() or (0, 0, *letters.size)
    margin = [rng.randint(0, 1 + (bottom - top) // 5) for _ in range(4)]
    return letters.crop((left - margin[0], top - margin[1], right + margin[2], bottom + margin[3]))


def with_strip(letters: Image.Image, other: Image.Image, rng: random.Random) -> Image.Image:
    """One of the four edges is moved outwards, and there something of the other letters is seen."""
    turns = rng.randrange(4)
    here, there = (np.rot90(np.asarray(part), turns) for part in (letters, other.crop(other.getbbox())))
    strip = there[: len(here), : rng.randint(1, 1 + min(letters.size) // 6)]
    made = np.pad(here, ((0, 0), (0, rng.randint(0, 2) + strip.shape[1])))
    made[: len(strip), -strip.shape[1] :] = strip
    return Image.fromarray(np.ascontiguousarray(np.rot90(made, -turns)))


def two_colours(rng: random.Random) -> tuple[Colour, Colour]:
    """Letters and ground that can be told apart."""
    while True:
        ink, ground = (tuple(rng.randint(0, 255) for _ in range(3)) for _ in range(2))
        if abs(brightness(ink) - brightness(ground)) >= LEAST:
            return (ink[0], ink[1], ink[2]), (ground[0], ground[1], ground[2])


def brightness(colour: Sequence[int]) -> float:
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue


def grounded(size: tuple[int, int], colour: Colour, roughness: float, noise: np.random.Generator) -> Image.Image:
    """A colour that is brighter here and darker there."""
    small = noise.normal(0, 30 * roughness, (int(noise.integers(2, 5)), int(noise.integers(2, 8)), 1))
    spots = np.clip(np.array(colour) + small, 0, 255).astype(np.uint8)
    return Image.fromarray(spots).resize(size, Image.Resampling.BICUBIC)


def worn(picture: Image.Image, roughness: float, rng: random.Random, noise: np.random.Generator) -> Image.Image:
    """As from far away, a little blurred, and with noise."""
    wide, high = picture.size
    if rng.random() < roughness:
        share = rng.uniform(min(1.0, 16 / high), 1.0)
        picture = picture.resize((max(4, int(wide * share)), max(4, int(high * share))), Image.Resampling.BILINEAR)
    if rng.random() < roughness:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.0, 0.04) * picture.size[1]))
    spread = rng.uniform(0, 16) * roughness
    pixels = np.asarray(picture) + noise.normal(0, spread, (picture.size[1], picture.size[0], 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@lru_cache(maxsize=1024)
def _font(path: str, height: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, height, layout_engine=ImageFont.Layout.BASIC)


def _has_letters(path: Path) -> bool:
    """Whether letters look different from each other, and from what stands for letters that are not there."""
    try:
        pen = _font(str(path), HEIGHTS[0])
        shapes = {bytes(pen.getmask(letter)) for letter in "aeRS38"}
    except (OSError, ValueError):
        return False
    return len(shapes) == len("aeRS38")
