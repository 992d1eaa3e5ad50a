"""Picture files as arrays of one size; whatever is wrong with a file is said in one line."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from saccade.errors import SaccadeError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MOST_PIXELS = 100_000_000  # of a file; decoded they take 300 megabytes
Fit = Literal["crop", "stretch"]


def read_picture(file: str | Path | bytes, *, size: int, fit: Fit = "crop", name: str = "") -> np.ndarray:
    """(3, size, size) uint8: upright, in colours, and on white where it is transparent."""
    name = name or ("picture" if isinstance(file, bytes) else str(file))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of many pixels, which are counted below
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as picture:
                return _decoded(picture, size=size, fit=fit, name=name)
    except FileNotFoundError:
        raise SaccadeError(f"{name} not found") from None
    except UnidentifiedImageError:
        raise SaccadeError(
            f"{name} is no picture that can be read; expected JPEG, PNG, WebP, BMP, GIF or TIFF"
        ) from None
    except Image.DecompressionBombError:
        raise SaccadeError(f"{name} has more than {MOST_PIXELS:,} pixels; make it smaller") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow raises for damaged files
        raise SaccadeError(f"{name} is damaged: {getattr(error, 'strerror', None) or error}; make it again") from None


def _decoded(picture: Image.Image, *, size: int, fit: Fit, name: str) -> np.ndarray:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "a part of a picture is not a picture"
    wide, high = picture.size
    if wide * high > MOST_PIXELS:
        raise SaccadeError(f"{name} has {wide:,} x {high:,} pixels, more than {MOST_PIXELS:,} in all; make it smaller")
    if picture.format == "JPEG":
        picture.draft("RGB", (2 * size, 2 * size))  # decodes large ones at a fraction of their size
    upright = ImageOps.exif_transpose(picture)
    colours = _in_colours(upright)
    if fit == "crop":
        fitted = ImageOps.fit(colours, (size, size), Image.Resampling.BILINEAR)
    else:
        fitted = colours.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))


def _in_colours(picture: Image.Image) -> Image.Image:
    """Grey, CMYK and palettes as RGB; 16-bit greys by their upper half; what is transparent shows white behind it."""
    if picture.mode.startswith("I") or picture.mode == "F":
        numbers = np.asarray(picture, dtype=np.float64)
        most = 255 if numbers.size == 0 or numbers.max() <= 255 else 65535
        return Image.fromarray(np.uint8(np.clip(numbers / most, 0, 1) * 255)).convert("RGB")
    if "A" in picture.getbands() or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    return picture.convert("RGB")


def is_picture(path: str | os.PathLike[str]) -> bool:
    """By its name; what is in it is seen when it is read."""
    return Path(path).suffix.lower() in SUFFIXES
