"""Audio features: log-mel spectrograms, or features that were computed elsewhere."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from saccade.allocation import check_allocation
from saccade.config.sound import Sound
from saccade.data.media.sound import read_sound, resample
from saccade.errors import SaccadeError
from saccade.files import get_error_reason

MIN_ENERGY = 1e-10  # keeps the logarithm of silence finite
HERTZ_PER_MEL = 200 / 3  # below LOG_REGION_START (mel scale of Slaney 1998)
LOG_REGION_START = 1000.0  # hertz; the mel scale is linear below and logarithmic above
LOG_STEP_PER_MEL = np.log(6.4) / 27  # step of log(hertz) for one mel above LOG_REGION_START
BLOCK_FRAMES = 4096  # frames per Fourier transform


def extract_features(samples: np.ndarray, rate: int, settings: Sound) -> np.ndarray:
    """Compute the features (T, bands) of a recording (N,), normalized as the settings ask."""
    samples = pad_recording(resample(samples, rate, settings.sample_rate), settings)
    if settings.normalize == "whisper":
        return normalize_whisper(compute_log_mel(samples, settings, pad_mode="reflect"))
    frames = compute_log_mel(samples, settings)
    return normalize_features(frames) if settings.normalize else frames


def pad_recording(samples: np.ndarray, settings: Sound) -> np.ndarray:
    """Pad or cut a recording to the fixed length of the settings, if they have one."""
    if settings.pad_seconds is None:
        return samples
    count = round(settings.pad_seconds * settings.sample_rate)
    return np.pad(samples[:count], (0, max(0, count - len(samples))))


def normalize_whisper(frames: np.ndarray) -> np.ndarray:
    """Clamp log10 energies to at most 8 below the maximum, scale, and drop the last frame (Radford et al. 2022)."""
    powers = frames[: max(1, len(frames) - 1)] / np.log(10)
    return ((np.maximum(powers, powers.max() - 8) + 4) / 4).astype(np.float32)


def normalize_features(frames: np.ndarray) -> np.ndarray:
    """Normalize each feature to mean 0 and variance 1 over the recording; constant features become 0."""
    centred = frames - frames.mean(axis=0, dtype=np.float64)
    return (centred / (centred.std(axis=0) + 1e-5)).astype(np.float32)


def compute_log_mel(
    samples: np.ndarray, settings: Sound, *, pad_mode: Literal["constant", "reflect"] = "constant"
) -> np.ndarray:
    """Compute the log-mel spectrogram (T, bands); the centers of its frames are one hop apart.

    Both ends of the recording are padded with silence ("constant") or with its mirror image ("reflect").
    """
    size, hop = round(settings.window * settings.sample_rate), round(settings.hop * settings.sample_rate)
    bank = build_mel_filters(settings.mel_bands, size, settings.sample_rate)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)  # Hann window
    padded = np.pad(samples.astype(np.float64), (size // 2, size - size // 2), mode=pad_mode)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][: 1 + len(samples) // hop]
    parts = (windows[first : first + BLOCK_FRAMES] * window for first in range(0, len(windows), BLOCK_FRAMES))
    energy = np.concatenate([np.abs(np.fft.rfft(part, axis=1)) ** 2 @ bank for part in parts])
    return np.log(np.maximum(energy, MIN_ENERGY)).astype(np.float32)


@lru_cache(maxsize=8)
def build_mel_filters(bands: int, size: int, rate: int) -> np.ndarray:
    """Build triangular mel filters of equal area, (size // 2 + 1, bands)."""
    edges = mel_to_hertz(np.linspace(0, hertz_to_mel(np.array(rate / 2)), bands + 2))
    frequencies = np.arange(size // 2 + 1) * rate / size
    rising = (frequencies[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies[:, None]) / np.diff(edges)[1:]
    bank = np.maximum(0, np.minimum(rising, falling))
    if (bank.max(axis=0) == 0).any():
        raise SaccadeError(
            f"reader.sound.mel_bands = {bands} are narrower than the frequency resolution of a window of {size} "
            "samples; lower bands, or raise reader.sound.window"
        )
    return bank * (2 / (edges[2:] - edges[:-2]))


def hertz_to_mel(frequency: np.ndarray) -> np.ndarray:
    """Convert hertz to mels: linear below 1000 hertz, logarithmic above."""
    above = (
        LOG_REGION_START / HERTZ_PER_MEL
        + np.log(np.maximum(frequency, LOG_REGION_START) / LOG_REGION_START) / LOG_STEP_PER_MEL
    )
    return np.where(frequency < LOG_REGION_START, frequency / HERTZ_PER_MEL, above)


def mel_to_hertz(mels: np.ndarray) -> np.ndarray:
    """Convert mels to hertz."""
    return np.where(
        mels < LOG_REGION_START / HERTZ_PER_MEL,
        mels * HERTZ_PER_MEL,
        LOG_REGION_START * np.exp(LOG_STEP_PER_MEL * (mels - LOG_REGION_START / HERTZ_PER_MEL)),
    )


# ---- Features that were computed elsewhere: a .npz for many recordings, or a .npy for each.


ARCHIVE_SUFFIX, ARRAY_SUFFIX = ".npz", ".npy"
NUMBER_MARK = "#"  # between the path of a .npz and the number of a recording in it
ARRAYS = ("features", "offsets", "text")


def read_feature_archive(path: str | Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, name and text of each recording of a .npz.

    Its arrays are `features` (frames, features), all recordings concatenated, `offsets` (recordings + 1) and `text`
    (recordings).
    """
    for number, text in enumerate(_load_archive(str(path))["text"]):
        yield number + 1, f"{path}{NUMBER_MARK}{number}", str(text)


def is_feature_file(name: str) -> bool:
    return name.lower().endswith(ARRAY_SUFFIX) or f"{ARCHIVE_SUFFIX}{NUMBER_MARK}" in name.lower()


def load_features(name: str, *, num_features: int) -> np.ndarray:
    """Load the features (T, num_features) of a .npy, or of a recording of a .npz by its name PATH#NUMBER."""
    if name.lower().endswith(ARRAY_SUFFIX):
        frames = _load_file(name)
        if not isinstance(frames, np.ndarray):
            raise SaccadeError(f"{name} is a zip archive, expected one array; call it {ARCHIVE_SUFFIX}")
        _check_numbers(frames, name)
    else:
        path, _, number = name.rpartition(NUMBER_MARK)
        arrays = _load_archive(path)
        first, last = arrays["offsets"][int(number) : int(number) + 2]
        frames = arrays["features"][first:last]
    if frames.ndim != 2 or not len(frames):
        raise SaccadeError(f"{name} has no frames: expected an array (frames, features), got shape {frames.shape}")
    if frames.shape[1] != num_features:
        raise SaccadeError(
            f"{name} has {frames.shape[1]} features a frame, the model reads {num_features}; "
            f"set reader.sound.mel_bands = {frames.shape[1]}"
        )
    if not np.isfinite(frames).all():
        raise SaccadeError(f"{name} has features that are not finite; write it again, or leave it out")
    return np.asarray(frames, dtype=np.float32)


@lru_cache(maxsize=2)
def _load_archive(path: str) -> dict[str, np.ndarray]:
    """Load and check the arrays of a .npz."""
    archive = _load_file(path)
    if isinstance(archive, np.ndarray):
        raise SaccadeError(f"{path} is one array, expected an archive of several; call it {ARRAY_SUFFIX}")
    if missing := [name for name in ARRAYS if name not in archive]:
        raise SaccadeError(
            f"{path} lacks the array '{missing[0]}'; precomputed features need {', '.join(ARRAYS)}, "
            f"got {', '.join(archive) or 'none'}"
        )
    with archive:
        try:
            arrays = {name: archive[name] for name in ARRAYS}
        except Exception as error:  # numpy, zipfile and zlib raise many kinds for damaged files
            raise _build_damaged_error(path, error) from None
    offsets, frames = arrays["offsets"], arrays["features"]
    _check_numbers(frames, path)
    shapes = tuple(arrays[name].ndim for name in ARRAYS)
    if shapes != (2, 1, 1) or not np.issubdtype(offsets.dtype, np.integer) or not len(offsets):
        raise SaccadeError(
            f"{path}: expected features (frames, features), offsets (recordings + 1) of integers and text "
            f"(recordings), got {', '.join(f'{name} {arrays[name].shape} of {arrays[name].dtype}' for name in ARRAYS)}"
        )
    if len(offsets) != len(arrays["text"]) + 1 or int(offsets[-1]) != len(frames) or (np.diff(offsets) < 0).any():
        raise SaccadeError(
            f"{path}: offsets must rise to the number of frames, one more than texts, got {len(offsets)} up to "
            f"{int(offsets[-1])} for {len(arrays['text'])} texts and {len(frames)} frames"
        )
    return arrays


def _load_file(path: str) -> Any:
    try:
        check_allocation(_measure_arrays(path), path, "split it into several files")
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise SaccadeError(f"{path} not found") from None
    except SaccadeError:
        raise
    except Exception as error:  # numpy raises many kinds for damaged headers
        raise _build_damaged_error(path, error) from None


def _measure_arrays(path: str) -> int:
    """The bytes that the arrays of a file take in memory: a compressed archive may be a thousand times smaller."""
    if not zipfile.is_zipfile(path):
        return os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist())


def _check_numbers(frames: np.ndarray, name: str) -> None:
    if not (np.issubdtype(frames.dtype, np.floating) or np.issubdtype(frames.dtype, np.integer)):
        raise SaccadeError(f"{name}: expected real numbers, got {frames.dtype}; write it again")


def _build_damaged_error(path: str, error: Exception) -> SaccadeError:
    reason = (get_error_reason(error).splitlines() or [type(error).__name__])[0][:200]
    return SaccadeError(f"{path} is not a readable file of arrays ({reason}); write it again")


def read_frames(file: str | bytes, settings: Sound, *, name: str = "") -> np.ndarray:
    """Return the features (T, bands) float32 of a recording, or of a file of precomputed features."""
    if isinstance(file, str) and is_feature_file(file):
        frames = load_features(file, num_features=settings.mel_bands)
        return normalize_features(frames) if settings.normalize is True else frames
    samples, rate = read_sound(file, name=name, max_seconds=settings.max_seconds)
    return extract_features(samples, rate, settings)
