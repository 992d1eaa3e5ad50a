"""Images whose patches are the columns of attention maps: a grid over a photograph or a spectrogram."""

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

DATA_URL_PREFIX = "data:image/png;base64,"
MAX_SIDE_PIXELS = 448  # larger images are scaled down to this


@dataclass(frozen=True)
class Background:
    """An image as a `data:` URL, and the grid (rows, columns) of its patches, which are the columns of maps."""

    image: str
    grid: tuple[int, int]
    columns: str = "source"  # the side of the maps that the patches are
    images: tuple[str, ...] = ()  # if each row of a map has its own image, such as the frames of a video

    @classmethod
    def of_series(cls, images: Sequence[ArrayLike], grid: tuple[int, int], *, columns: str = "source") -> Background:
        """Create a background with one image per row of the maps."""
        urls = tuple(cls.of(image, grid, columns=columns).image for image in images)
        return cls(urls[0], grid, columns, urls)

    @classmethod
    def of(cls, image: str | Path | ArrayLike, grid: tuple[int, int], *, columns: str = "source") -> Background:
        """Create a background from a file, or from an array (height, width) or (height, width, 3) in 0..255."""
        resized = _open_image(image).convert("RGB")
        resized.thumbnail((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS))
        buffer = io.BytesIO()
        resized.save(buffer, "PNG")
        return cls(DATA_URL_PREFIX + base64.b64encode(buffer.getvalue()).decode(), grid, columns)

    def decode_pixels(self, row: int = 0) -> NDArray[np.uint8]:
        """Decode the image, or the image of a row, to an array (height, width, 3)."""
        image = self.images[row] if self.images else self.image
        data = base64.b64decode(image.removeprefix(DATA_URL_PREFIX))
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"))

    def to_dict(self) -> dict[str, Any]:
        values = {"columns": self.columns, "image": self.image, "grid": list(self.grid)}
        return {**values, "images": list(self.images)} if self.images else values

    def to_grid(self, weights: ArrayLike) -> NDArray:
        """Reshape a map (T, S) to (T, rows, columns) of the grid."""
        array, (rows, columns) = np.asarray(weights, dtype=float), self.grid
        if array.ndim != 2 or array.shape[1] != rows * columns:
            raise SaccadeError(
                f"a grid of {rows} x {columns} patches needs maps of {rows * columns} columns, "
                f"got shape {array.shape}; give the grid of the model that computed the weights"
            )
        return array.reshape(-1, rows, columns)


def _open_image(image: str | Path | ArrayLike) -> Image.Image:
    if not isinstance(image, str | Path):
        return Image.fromarray(np.asarray(image).astype(np.uint8))
    try:
        return Image.open(image)
    except (OSError, UnidentifiedImageError) as error:
        raise SaccadeError(f"cannot read the image {image}: {getattr(error, 'strerror', None) or error}") from None
