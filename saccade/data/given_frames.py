"""Frames that somebody else has made of sound: in a .npz for many recordings, or a .npy for each."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from saccade.errors import SaccadeError

MANY, ONE = ".npz", ".npy"
MARK = "#"  # between the name of a .npz and the number of a recording in it
ARRAYS = ("features", "offsets", "text")


def read_given(path: str | Path) -> Iterator[tuple[int, str, str]]:
    """Number, name and text of each recording of a .npz.

    Its arrays: `features` (frames, features) of all recordings one after the other, `offsets` (recordings + 1) where
    each begins and the last one ends, `text` (recordings).
    """
    for number, text in enumerate(_arrays(str(path))["text"]):
        yield number + 1, f"{path}{MARK}{number}", str(text)


def is_given(name: str) -> bool:
    return name.lower().endswith(ONE) or f"{MANY}{MARK}" in name.lower()


def given_frames(name: str, *, features: int) -> np.ndarray:
    """(T, features) of a .npy, or of a recording of a .npz by its name there."""
    if name.lower().endswith(ONE):
        frames = _load(name)
    else:
        path, _, number = name.rpartition(MARK)
        arrays = _arrays(path)
        first, last = arrays["offsets"][int(number) : int(number) + 2]
        frames = arrays["features"][first:last]
    if frames.ndim != 2 or not len(frames):
        raise SaccadeError(f"{name} has no frames: expected an array (frames, features), got shape {frames.shape}")
    if frames.shape[1] != features:
        raise SaccadeError(
            f"{name} has {frames.shape[1]} features a frame, the model reads {features}; "
            f"set reader.sound.bands = {frames.shape[1]}"
        )
    if not np.isfinite(frames).all():
        raise SaccadeError(f"{name} has features that are no finite numbers; make it again, or leave it out")
    return np.asarray(frames, dtype=np.float32)


@lru_cache(maxsize=2)
def _arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of a .npz, which are asked for again and again."""
    archive = _load(path)
    if missing := [name for name in ARRAYS if name not in archive]:
        raise SaccadeError(
            f"{path} lacks the array '{missing[0]}'; frames that are given need {', '.join(ARRAYS)}, "
            f"got {', '.join(archive) or 'none'}"
        )
    with archive:
        try:
            arrays = {name: archive[name] for name in ARRAYS}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(path, error) from None
    offsets, frames = arrays["offsets"], arrays["features"]
    if len(offsets) != len(arrays["text"]) + 1 or int(offsets[-1]) != len(frames) or (np.diff(offsets) < 0).any():
        raise SaccadeError(
            f"{path}: offsets must rise to the number of frames, one more than texts, got {len(offsets)} up to "
            f"{int(offsets[-1])} for {len(arrays['text'])} texts and {len(frames)} frames"
        )
    return arrays


def _load(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise SaccadeError(f"{path} not found") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from None


def _damaged(path: str, error: Exception) -> SaccadeError:
    return SaccadeError(f"{path} is no file of arrays that can be read ({str(error).splitlines()[0]}); make it again")
