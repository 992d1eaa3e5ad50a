"""Files of sound, or of frames that others made of it, as frames for a model."""

from __future__ import annotations

import numpy as np

from saccade.config.sound import Sound
from saccade.data.given_frames import given_frames, is_given
from saccade.data.mel import features, normalised
from saccade.data.sound import read_sound


def read_frames(file: str | bytes, settings: Sound, *, name: str = "") -> np.ndarray:
    """(T, bands) float32 of a file, or of one of many recordings in a file."""
    if isinstance(file, str) and is_given(file):
        frames = given_frames(file, features=settings.bands)
        return normalised(frames) if settings.normalise is True else frames
    samples, rate = read_sound(file, name=name, longest=settings.longest)
    return features(samples, rate, settings)
