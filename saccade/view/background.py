"""A picture behind the columns: they are cells of a grid over a photograph, or over a spectrogram."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, UnidentifiedImageError

from saccade.errors import SaccadeError

START = "data:image/png;base64,"
SIDE = 448  # pixels of the longer side of what is kept, at most


@dataclass(frozen=True)
class Background:
    """An image as a `data:` address, the grid (rows, columns) of its cells, and which columns of maps they are."""

    image: str
    grid: tuple[int, int]
    columns: str = "source"
    images: tuple[str, ...] = ()  # where each row of a map has a picture of its own

    @classmethod
    def series(cls, images: Sequence[ArrayLike], grid: tuple[int, int], *, columns: str = "source") -> Background:
        """Pictures that were seen one after the other, each by one row."""
        made = tuple(cls.of(image, grid, columns=columns).image for image in images)
        return cls(made[0], grid, columns, made)

    @classmethod
    def of(cls, image: str | Path | ArrayLike, grid: tuple[int, int], *, columns: str = "source") -> Background:
        """From a file, or from an array (height, width) or (height, width, 3) of numbers from 0 to 255."""
        picture = _opened(image).convert("RGB")
        picture.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return cls(START + base64.b64encode(buffer.getvalue()).decode(), grid, columns)

    def pixels(self, row: int = 0) -> NDArray[np.uint8]:
        image = self.images[row] if self.images else self.image
        data = base64.b64decode(image.removeprefix(START))
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"))

    def described(self) -> dict[str, Any]:
        found = {"columns": self.columns, "image": self.image, "grid": list(self.grid)}
        return {**found, "images": list(self.images)} if self.images else found

    def cells(self, weights: ArrayLike) -> NDArray:
        """Maps (T, S) as (T, rows, columns) of the grid."""
        array, (high, wide) = np.asarray(weights, dtype=float), self.grid
        if array.ndim != 2 or array.shape[1] != high * wide:
            raise SaccadeError(
                f"a grid of {high} x {wide} cells needs maps of {high * wide} columns, got shape {array.shape}; "
                "give the grid of the model that looked"
            )
        return array.reshape(-1, high, wide)


def _opened(image: str | Path | ArrayLike) -> Image.Image:
    if not isinstance(image, str | Path):
        return Image.fromarray(np.asarray(image).astype(np.uint8))
    try:
        return Image.open(image)
    except (OSError, UnidentifiedImageError) as error:
        raise SaccadeError(f"cannot read the picture {image}: {getattr(error, 'strerror', None) or error}") from None
