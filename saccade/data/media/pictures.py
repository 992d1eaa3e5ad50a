"""Picture files as arrays of one size; whatever is wrong with a file is said in one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from saccade.errors import SaccadeError
from saccade.files import get_reason, open_source

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # others of Pillow may start programs
MOST_PIXELS = 100_000_000  # of a file; decoded they take 300 megabytes
Fit = Literal["crop", "stretch", "pad"]
Resample = Literal["bilinear", "bicubic"]
METHODS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
BORDER = (128, 128, 128)  # of "pad": neither dark nor bright


def read_picture(
    file: str | Path | bytes,
    *,
    size: int | tuple[int, int],
    fit: Fit = "crop",
    name: str = "",
    most: int = MOST_PIXELS,
    resample: Resample = "bilinear",
    margin: int = 0,
) -> np.ndarray:
    """(3, high, wide) uint8: upright, in colours, and on white where it is transparent; one `size` is that of both.

    A picture is at first larger by the `margin` on each side, which is cut off.
    """
    sides = (size, size) if isinstance(size, int) else size
    source, path = open_source(file, unnamed="picture")
    name = name or path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of many pixels, which are counted below
            with Image.open(source, formats=FORMATS) as picture:
                check_pixels(picture, name=name, most=most)
                whole = (sides[0] + 2 * margin, sides[1] + 2 * margin)
                made = _decoded(picture, name=name, sides=whole, fit=fit, method=METHODS[resample])
                return np.ascontiguousarray(made[:, margin : margin + sides[0], margin : margin + sides[1]])
    except SaccadeError:
        raise
    except FileNotFoundError:
        raise SaccadeError(f"{name} not found") from None
    except IsADirectoryError:
        raise SaccadeError(f"{name} is a folder; expected a picture") from None
    except UnidentifiedImageError:
        raise SaccadeError(
            f"{name} is no picture that can be read; expected JPEG, PNG, WebP, BMP, GIF or TIFF"
        ) from None
    except Image.DecompressionBombError:
        raise SaccadeError(f"{name} has more than {most:,} pixels; make it smaller") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow raises for damaged files
        raise SaccadeError(f"{name} is damaged: {get_reason(error)}; make it again") from None


def check_pixels(picture: Image.Image, *, name: str, most: int) -> None:
    """Before they are decoded: a small file may say that it has very many."""
    wide, high = picture.size
    if wide * high > most:
        raise SaccadeError(f"{name} has {wide:,} x {high:,} pixels, more than {most:,} in all; make it smaller")


def _decoded(
    picture: Image.Image, *, name: str, sides: tuple[int, int], fit: Fit, method: Image.Resampling
) -> np.ndarray:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "a part of a picture is not a picture"
    if picture.format == "JPEG":
        picture.draft("RGB", (2 * max(sides), 2 * max(sides)))  # decodes large ones at a fraction of their size
    ImageOps.exif_transpose(picture, in_place=True)
    colours, wanted = _in_colours(picture, name), (sides[1], sides[0])
    if fit == "crop":
        fitted = ImageOps.fit(colours, wanted, method)
    elif fit == "pad":
        fitted = ImageOps.pad(colours, wanted, method, color=BORDER)
    else:
        fitted = colours.resize(wanted, method)
    return np.asarray(fitted).transpose(2, 0, 1)


def _in_colours(picture: Image.Image, name: str) -> Image.Image:
    """Grey, CMYK and palettes as RGB; 16-bit greys by their upper half; what is transparent shows white behind it."""
    if picture.mode.startswith("I") or picture.mode == "F":
        numbers = np.array(picture, dtype=np.float64)
        largest = numbers.max()
        if not np.isfinite(largest):
            raise SaccadeError(f"{name} has pixels that are no finite numbers; write it anew, or leave it out")
        fractions = picture.mode == "F" and largest <= 1
        numbers /= 1 if fractions else 255 if largest <= 255 else 65535
        np.clip(numbers, 0, 1, out=numbers)  # in place: large pictures take much memory as it is
        numbers *= 255
        return Image.fromarray(np.uint8(numbers)).convert("RGB")
    if "A" in picture.getbands() or "transparency" in picture.info:
        clear = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        white = Image.new("RGB", clear.size, "white")
        white.paste(clear, mask=clear.getchannel("A"))
        return white
    return picture if picture.mode == "RGB" else picture.convert("RGB")
