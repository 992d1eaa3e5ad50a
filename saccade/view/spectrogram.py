"""Frames of sound as a picture: time from left to right, pitch from below, loud is light."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDE, HIGH = 448, 112  # pixels, about


def spectrogram(frames: ArrayLike, *, columns: int) -> NDArray[np.uint8]:
    """(height, width) from 0 to 255 of frames (T, F); silence fills it up to so many columns of frames."""
    values = np.asarray(frames, dtype=float)
    low, high = np.quantile(values, 0.05), values.max()
    grey = np.clip((values - low) / max(float(high - low), 1e-9), 0, 1)
    grey = np.pad(grey, ((0, max(0, columns - len(grey))), (0, 0)))
    down, across = (max(1, most // length) for most, length in zip((HIGH, WIDE), grey.T.shape, strict=True))
    return np.uint8(255 * grey.T[::-1]).repeat(down, axis=0).repeat(across, axis=1)
