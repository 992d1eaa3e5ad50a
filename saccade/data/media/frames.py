"""Sound as frames of features: the logarithm of the energy in bands that lie as far apart as we hear them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from saccade.config.sound import Sound
from saccade.data.media.sound import read_sound, resample
from saccade.errors import SaccadeError

FLOOR = 1e-10  # of energy: silence has a logarithm too
LINEAR = 200 / 3  # hertz of one mel below 1000 hertz (Slaney 1998)
BEND = 1000.0  # hertz from which on mels are logarithmic
STEP = np.log(6.4) / 27  # of the logarithm of hertz, for one mel above
BLOCK = 4096  # frames that are transformed at a time


def features(samples: np.ndarray, rate: int, settings: Sound) -> np.ndarray:
    """Frames (T, bands) of a recording (N,), normalised where the settings say so."""
    samples = filled_up(resample(samples, rate, settings.rate), settings)
    if settings.normalise == "whisper":
        return below_the_loudest(log_mel(samples, settings, beyond="reflect"))
    frames = log_mel(samples, settings)
    return normalised(frames) if settings.normalise else frames


def filled_up(samples: np.ndarray, settings: Sound) -> np.ndarray:
    """With silence behind the end, where all recordings are to be of one length."""
    if settings.pad is None:
        return samples
    count = round(settings.pad * settings.rate)
    return np.pad(samples[:count], (0, max(0, count - len(samples))))


def below_the_loudest(frames: np.ndarray) -> np.ndarray:
    """What lies 8 powers of ten below the loudest is silence, and the last frame is left out (Radford et al. 2022)."""
    powers = frames[: max(1, len(frames) - 1)] / np.log(10)
    return ((np.maximum(powers, powers.max() - 8) + 4) / 4).astype(np.float32)


def normalised(frames: np.ndarray) -> np.ndarray:
    """Each feature with mean 0 and variance 1 over the recording; one that never changes is 0."""
    centred = frames - frames.mean(axis=0, dtype=np.float64)
    return (centred / (centred.std(axis=0) + 1e-5)).astype(np.float32)


def log_mel(samples: np.ndarray, settings: Sound, *, beyond: Literal["constant", "reflect"] = "constant") -> np.ndarray:
    """The logarithm of the energy in each band, in frames (T, bands) whose middles are one hop apart.

    Beyond both ends of the recording there is silence, or the recording as in a mirror.
    """
    size, hop = round(settings.window * settings.rate), round(settings.hop * settings.rate)
    bank = mel_bank(settings.bands, size, settings.rate)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)  # Hann's
    padded = np.pad(samples.astype(np.float64), (size // 2, size - size // 2), mode=beyond)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][: 1 + len(samples) // hop]
    parts = (windows[first : first + BLOCK] * window for first in range(0, len(windows), BLOCK))
    energy = np.concatenate([np.abs(np.fft.rfft(part, axis=1)) ** 2 @ bank for part in parts])
    return np.log(np.maximum(energy, FLOOR)).astype(np.float32)


@lru_cache(maxsize=8)
def mel_bank(bands: int, size: int, rate: int) -> np.ndarray:
    """(size // 2 + 1, bands): triangles, each from the middle of the band before to that of the next, of one area."""
    corners = hertz(np.linspace(0, mel(np.array(rate / 2)), bands + 2))
    pitches = np.arange(size // 2 + 1) * rate / size
    rising = (pitches[:, None] - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - pitches[:, None]) / np.diff(corners)[1:]
    bank = np.maximum(0, np.minimum(rising, falling))
    if (bank.max(axis=0) == 0).any():
        raise SaccadeError(
            f"reader.sound.bands = {bands} are narrower than what a window of {size} samples can tell apart; "
            "lower bands, or raise reader.sound.window"
        )
    return bank * (2 / (corners[2:] - corners[:-2]))


def mel(pitch: np.ndarray) -> np.ndarray:
    """Hertz as mels: even below 1000 hertz, then even in the logarithm."""
    above = BEND / LINEAR + np.log(np.maximum(pitch, BEND) / BEND) / STEP
    return np.where(pitch < BEND, pitch / LINEAR, above)


def hertz(mels: np.ndarray) -> np.ndarray:
    """Mels as hertz."""
    return np.where(mels < BEND / LINEAR, mels * LINEAR, BEND * np.exp(STEP * (mels - BEND / LINEAR)))


# ---- Frames that somebody else has made of sound: in a .npz for many recordings, or a .npy for each.


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


# ---- Files of sound, or of frames that others made of it, as frames for a model.


def read_frames(file: str | bytes, settings: Sound, *, name: str = "") -> np.ndarray:
    """(T, bands) float32 of a file, or of one of many recordings in a file."""
    if isinstance(file, str) and is_given(file):
        frames = given_frames(file, features=settings.bands)
        return normalised(frames) if settings.normalise is True else frames
    samples, rate = read_sound(file, name=name, longest=settings.longest)
    return features(samples, rate, settings)
