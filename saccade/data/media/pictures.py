"""Decode picture files to arrays of one size; problems with a file become errors of one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from saccade.errors import SaccadeError
from saccade.files import get_error_reason, open_source

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # some other formats of Pillow run external programs
MAX_PICTURE_PIXELS = 100_000_000  # 300 MB when decoded
Fit = Literal["crop", "stretch", "pad"]
Resample = Literal["bilinear", "bicubic"]
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
PADDING_COLOR = (128, 128, 128)  # of fit = "pad": middle grey


def read_picture(
    file: str | Path | bytes,
    *,
    size: int | tuple[int, int],
    fit: Fit = "crop",
    name: str = "",
    max_pixels: int = MAX_PICTURE_PIXELS,
    resample: Resample = "bilinear",
    margin: int = 0,
) -> np.ndarray:
    """Decode a picture to (3, height, width) uint8 RGB: rotated as its EXIF data say, transparency over white.

    It is scaled to `size` plus `margin` pixels on each side, and the margin is cropped off.
    """
    sides = (size, size) if isinstance(size, int) else size
    source, path = open_source(file, unnamed="picture")
    name = name or path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and about many pixels, which are checked below
            with Image.open(source, formats=FORMATS) as picture:
                check_pixels(picture, name=name, max_pixels=max_pixels)
                with_margin = (sides[0] + 2 * margin, sides[1] + 2 * margin)
                pixels = _decode(picture, name=name, sides=with_margin, fit=fit, method=RESAMPLING[resample])
                return np.ascontiguousarray(pixels[:, margin : margin + sides[0], margin : margin + sides[1]])
    except SaccadeError:
        raise
    except FileNotFoundError:
        raise SaccadeError(f"{name} not found") from None
    except IsADirectoryError:
        raise SaccadeError(f"{name} is a folder; expected a picture") from None
    except UnidentifiedImageError:
        raise SaccadeError(f"{name} is not a readable picture; expected JPEG, PNG, WebP, BMP, GIF or TIFF") from None
    except Image.DecompressionBombError:
        raise SaccadeError(f"{name} has more than {max_pixels:,} pixels; make it smaller") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow raises for damaged files
        raise SaccadeError(f"{name} is damaged: {get_error_reason(error)}; save it again") from None


def check_pixels(picture: Image.Image, *, name: str, max_pixels: int) -> None:
    """Refuse too large pictures before decoding: a small file may declare very many pixels."""
    width, height = picture.size
    if width * height > max_pixels:
        raise SaccadeError(
            f"{name} has {width:,} x {height:,} pixels, more than {max_pixels:,} in all; make it smaller"
        )


def _decode(
    picture: Image.Image, *, name: str, sides: tuple[int, int], fit: Fit, method: Image.Resampling
) -> np.ndarray:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "truncated files must fail"
    if picture.format == "JPEG":
        # decodes large pictures at a lower resolution, which is faster
        picture.draft("RGB", (2 * max(sides), 2 * max(sides)))
    ImageOps.exif_transpose(picture, in_place=True)
    rgb, size = _convert_to_rgb(picture, name), (sides[1], sides[0])
    if fit == "crop":
        fitted = ImageOps.fit(rgb, size, method)
    elif fit == "pad":
        fitted = ImageOps.pad(rgb, size, method, color=PADDING_COLOR)
    else:
        fitted = rgb.resize(size, method)
    return np.asarray(fitted).transpose(2, 0, 1)


def _convert_to_rgb(picture: Image.Image, name: str) -> Image.Image:
    """Convert grey, 16-bit, float, CMYK and palette pictures to RGB; transparent pixels are put over white."""
    if picture.mode.startswith("I") or picture.mode == "F":
        values = np.array(picture, dtype=np.float64)
        largest = values.max()
        if not np.isfinite(largest):
            raise SaccadeError(f"{name} has pixels that are not finite; save it again, or leave it out")
        fractions = picture.mode == "F" and largest <= 1
        values /= 1 if fractions else 255 if largest <= 255 else 65535
        np.clip(values, 0, 1, out=values)  # in place to save memory
        values *= 255
        return Image.fromarray(np.uint8(values)).convert("RGB")
    if "A" in picture.getbands() or "transparency" in picture.info:
        rgba = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        white = Image.new("RGB", rgba.size, "white")
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return picture if picture.mode == "RGB" else picture.convert("RGB")
