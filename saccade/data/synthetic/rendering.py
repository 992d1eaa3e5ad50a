"""Generated pictures of words: in many fonts and colors, rotated and bent, with shadows, noise and blur.

A picture depends only on its word, the fonts and the seed.
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

LETTERS = "abdeghinorst"  # of the words of `generate_word_pictures`
MAX_WORD_LENGTH = 5
BUNDLED_FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "STIXGeneralBol")
COLOR_PAIRS = (  # letters and background
    ((20, 20, 20), (240, 240, 235)), ((245, 245, 245), (15, 15, 20)), ((250, 250, 250), (20, 90, 170)),
    ((170, 20, 30), (245, 235, 210)), ((245, 200, 20), (30, 40, 60)), ((20, 60, 40), (200, 220, 190)),
)  # fmt: skip
FONT_HEIGHTS = (26, 32, 40)  # pixels, before the picture is scaled
MIN_CONTRAST = 70  # minimum difference of brightness between letters and background, of 255

Color = tuple[int, int, int]


class RenderStyle(NamedTuple):
    """How words are rendered; `roughness` is the strength of distortions, from 0 to 1."""

    fonts: tuple[str, ...]
    roughness: float = 0.5
    colors: Sequence[tuple[Color, Color]] = ()  # pairs of letters and background; random if empty
    strip_rate: float = 0.0  # share of pictures with a strip of other letters at one edge, as after bad cropping


def generate_word_pictures(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Image.Image, str]]:
    """Yield pictures of words of 3 to 5 letters, and the words; the word decides whether it is held out."""
    rng, hand = random.Random(f"words {seed} {heldout}"), RenderStyle(list_bundled_fonts(), 0.15, COLOR_PAIRS)
    while count:
        word = "".join(rng.choices(LETTERS, k=rng.randint(3, MAX_WORD_LENGTH)))
        if (random.Random(word).random() < 0.1) == heldout:
            count -= 1
            yield render_word(word, hand, rng), word


def list_bundled_fonts() -> tuple[str, ...]:
    """Return the paths of some fonts that matplotlib includes."""
    from saccade.plotting import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return tuple(str(folder / f"{name}.ttf") for name in BUNDLED_FONTS)


def find_fonts(folder: str | Path) -> tuple[str, ...]:
    """Find all fonts with Latin letters and digits in a folder and its subfolders."""
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".ttf", ".otf"))
    fonts = tuple(str(path) for path in found if _has_letters(path))
    if not fonts:
        raise SaccadeError(f"{folder} has no font with letters in it; expected files *.ttf or *.otf")
    return fonts


def render_word(word: str, style: RenderStyle, rng: random.Random) -> Image.Image:
    """Render a word with a small margin."""
    noise = np.random.default_rng(rng.getrandbits(64))
    font = rng.choice(style.fonts)
    letters = crop_letters(warp_letters(draw_letters(word, font, rng), style.roughness, rng), rng)
    if style.strip_rate and rng.random() < style.strip_rate:
        letters = add_strip(letters, draw_letters(word[::-1], font, rng), rng)
    ink, ground = rng.choice(style.colors) if style.colors else sample_color_pair(rng)
    picture = render_background(letters.size, ground, style.roughness, noise)
    if rng.random() < style.roughness / 2:
        shadow = ImageChops.offset(letters, rng.randint(1, 3), rng.randint(1, 3)).filter(ImageFilter.GaussianBlur(1))
        picture.paste(tuple(part // 3 for part in ground), mask=shadow)
    if rng.random() < style.roughness / 2:
        outline = letters.filter(ImageFilter.MaxFilter(rng.choice((3, 5))))
        picture.paste(sample_color_pair(rng)[0], mask=outline)
    picture.paste(render_background(letters.size, ink, style.roughness / 2, noise), mask=letters)
    return degrade_picture(picture, style.roughness, rng, noise)


def draw_letters(word: str, font: str, rng: random.Random) -> Image.Image:
    """Draw white letters on black with a wide margin, with random spacing and stroke width."""
    pen = _load_font(font, rng.choice(FONT_HEIGHTS))
    gap, stroke = rng.choice((0, 0, 0, 1, 2, 4)), rng.choice((0, 0, 0, 1))
    wide, room = int(pen.getlength(word)) + gap * len(word), int(pen.size)
    picture = Image.new("L", (wide + 2 * room, 3 * room))
    canvas, x = ImageDraw.Draw(picture), float(room)
    for letter in word if gap else (word,):
        canvas.text((x, room), letter, fill=255, font=pen, stroke_width=stroke)
        x += pen.getlength(letter) + gap
    return picture


def warp_letters(letters: Image.Image, roughness: float, rng: random.Random) -> Image.Image:
    """Sometimes bend the letters along an arc; then move the corners at random: rotation, shear and perspective."""
    wide, high = letters.size
    if rng.random() < roughness / 2:
        letters = _bend_letters(letters, rng.uniform(-0.12, 0.12) * high)
    turn = rng.gauss(0, 0.08) * roughness * min(wide, 2 * high)
    lean, loose = rng.gauss(0, 0.15) * roughness * high, 0.06 * roughness * high
    corners = ((-lean, -turn), (lean, high - turn), (wide + lean, high + turn), (wide - lean, turn))
    moved = tuple(part + rng.uniform(-loose, loose) for corner in corners for part in corner)
    return letters.transform(letters.size, Image.Transform.QUAD, moved, Image.Resampling.BILINEAR)


def _bend_letters(letters: Image.Image, height: float) -> Image.Image:
    """Bend the letters along an arc, whose middle is higher or lower than its ends by `height` pixels."""
    wide, high = letters.size
    shift = np.rint(height * (np.cos(np.linspace(-np.pi / 2, np.pi / 2, wide)) - 0.5)).astype(int)
    rows = (np.arange(high)[:, None] + shift) % high
    return Image.fromarray(np.take_along_axis(np.asarray(letters), rows, axis=0))


def crop_letters(letters: Image.Image, rng: random.Random) -> Image.Image:
    """Crop to the letters with a random margin on each side."""
    left, top, right, bottom = letters.getbbox() or (0, 0, *letters.size)
    margin = [rng.randint(0, 1 + (bottom - top) // 5) for _ in range(4)]
    return letters.crop((left - margin[0], top - margin[1], right + margin[2], bottom + margin[3]))


def add_strip(letters: Image.Image, other: Image.Image, rng: random.Random) -> Image.Image:
    """Extend one of the four sides by a strip that shows a part of other letters."""
    turns = rng.randrange(4)
    own, neighbor = (np.rot90(np.asarray(part), turns) for part in (letters, other.crop(other.getbbox())))
    strip = neighbor[: len(own), : rng.randint(1, 1 + min(letters.size) // 6)]
    extended = np.pad(own, ((0, 0), (0, rng.randint(0, 2) + strip.shape[1])))
    extended[: len(strip), -strip.shape[1] :] = strip
    return Image.fromarray(np.ascontiguousarray(np.rot90(extended, -turns)))


def sample_color_pair(rng: random.Random) -> tuple[Color, Color]:
    """Sample colors of letters and background with enough contrast."""
    while True:
        ink, ground = (tuple(rng.randint(0, 255) for _ in range(3)) for _ in range(2))
        if abs(compute_brightness(ink) - compute_brightness(ground)) >= MIN_CONTRAST:
            return (ink[0], ink[1], ink[2]), (ground[0], ground[1], ground[2])


def compute_brightness(color: Sequence[int]) -> float:
    red, green, blue = color
    return 0.299 * red + 0.587 * green + 0.114 * blue


def render_background(size: tuple[int, int], color: Color, roughness: float, noise: np.random.Generator) -> Image.Image:
    """Render a background of one color with random bright and dark areas."""
    small = noise.normal(0, 30 * roughness, (int(noise.integers(2, 5)), int(noise.integers(2, 8)), 1))
    spots = np.clip(np.array(color) + small, 0, 255).astype(np.uint8)
    return Image.fromarray(spots).resize(size, Image.Resampling.BICUBIC)


def degrade_picture(
    picture: Image.Image, roughness: float, rng: random.Random, noise: np.random.Generator
) -> Image.Image:
    """Downscale, blur and add noise, at random."""
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
def _load_font(path: str, height: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, height, layout_engine=ImageFont.Layout.BASIC)


def _has_letters(path: Path) -> bool:
    """Whether a font has distinct glyphs for letters and digits."""
    try:
        pen = _load_font(str(path), FONT_HEIGHTS[0])
        shapes = {bytes(pen.getmask(letter)) for letter in "aeRS38"}
    except (OSError, ValueError):
        return False
    return len(shapes) == len("aeRS38")
