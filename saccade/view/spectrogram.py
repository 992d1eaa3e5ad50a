"""Spectrogram images: time from left to right, frequency from bottom to top, loud is light."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

TARGET_WIDTH, TARGET_HEIGHT = 448, 112  # pixels, approximately


def render_spectrogram(frames: ArrayLike, *, columns: int) -> NDArray[np.uint8]:
    """Render frames (T, F) as an image (height, width) in 0..255, padded with silence to `columns` frames."""
    values = np.asarray(frames, dtype=float)
    low, high = np.quantile(values, 0.05), values.max()
    grey = np.clip((values - low) / max(float(high - low), 1e-9), 0, 1)
    grey = np.pad(grey, ((0, max(0, columns - len(grey))), (0, 0)))
    down, across = (
        max(1, most // length) for most, length in zip((TARGET_HEIGHT, TARGET_WIDTH), grey.T.shape, strict=True)
    )
    return np.uint8(255 * grey.T[::-1]).repeat(down, axis=0).repeat(across, axis=1)
