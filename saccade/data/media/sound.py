"""Decode recordings to mono samples from -1 to 1, and resample them."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.errors import SaccadeError
from saccade.extras import get_install_command
from saccade.files import get_error_reason, open_source

MAX_SECONDS = 3600.0  # of a recording, by default
MAX_TOTAL_RATE = 384_000  # samples per second of all channels together: 8 channels at 48 kHz
MAX_RATE = 768_000  # samples per second of one channel, twice the highest rate of studio recordings
SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au")


class Recording(NamedTuple):
    """Samples (N,) from -1 to 1 and the sampling rate in hertz."""

    samples: np.ndarray
    rate: int

    def save(self, path: str | Path) -> None:
        """Write a 16-bit WAV; samples beyond -1 and 1 are clipped."""
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(self.rate)
            file.writeframes(np.round(np.clip(self.samples, -1, 1) * 32767).astype("<i2").tobytes())


class TooLongError(SaccadeError):
    """A recording is longer than `reader.sound.max_seconds`."""


def read_sound(file: str | Path | bytes, *, name: str = "", max_seconds: float = MAX_SECONDS) -> Recording:
    """Decode a recording; the channels are averaged.

    Integer WAV is read with the standard library, all other formats with soundfile.
    """
    name = name or open_source(file, unnamed="sound")[1]
    try:
        samples, rate = _read_wave(file, name, max_seconds)
    except (wave.Error, EOFError, RuntimeError):  # RuntimeError: a chunk of the file declares a wrong length
        samples, rate = _read_soundfile(file, name, max_seconds)
    except SaccadeError:
        raise
    except (OSError, ValueError) as error:  # ValueError: not a valid path
        raise SaccadeError(f"cannot read the sound {name}: {get_error_reason(error)}") from None
    if not len(samples):
        raise SaccadeError(f"the sound {name} is empty: it has no samples; leave it out")
    if not np.isfinite(samples).all():
        raise SaccadeError(f"the sound {name} has samples that are not finite; save it again, or leave it out")
    return Recording(samples.mean(axis=1, dtype=np.float32), rate)


def _read_wave(file: str | Path | bytes, name: str, max_seconds: float) -> tuple[np.ndarray, int]:
    with wave.open(open_source(file)[0], "rb") as sound:
        count, rate = sound.getnframes(), sound.getframerate()
        width, channels = sound.getsampwidth(), sound.getnchannels()
        if width > 4:
            raise wave.Error(f"samples of {width} bytes")
        check_length(count, rate, name, max_seconds, channels=channels)
        data = sound.readframes(count)
    if len(data) < count * width * channels:
        found = len(data) // (width * channels)
        raise SaccadeError(f"the sound {name} is cut off: {count:,} samples announced, {found:,} found; copy it again")
    return _to_samples(data, width).reshape(-1, channels), rate


def _to_samples(data: bytes, width: int) -> np.ndarray:
    """Convert PCM samples of 1 (unsigned), 2, 3 or 4 bytes to float from -1 to 1."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data, width = padded.tobytes(), 4
    return np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)


def _read_soundfile(file: str | Path | bytes, name: str, max_seconds: float) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except ImportError:
        raise SaccadeError(
            f"the sound {name} is not an integer WAV; all other formats need the package soundfile: write it as WAV, "
            f"or install it with: {get_install_command('sound')}"
        ) from None
    try:
        with soundfile.SoundFile(open_source(file)[0]) as sound:
            check_length(sound.frames, sound.samplerate, name, max_seconds, channels=sound.channels)
            return sound.read(dtype="float32", always_2d=True), sound.samplerate
    except (RuntimeError, OSError) as error:
        reason = getattr(error, "error_string", str(error)).splitlines()[
            0
        ]  # str(error) contains the address of an object
        reason = reason.removeprefix("Error : ").rstrip(". ")
        raise SaccadeError(f"cannot read the sound {name}: {reason}; is it a sound?") from None


def check_length(count: int, rate: int, name: str, max_seconds: float, *, channels: int = 1) -> None:
    """Refuse too long recordings before decoding: a small file may declare very many samples."""
    if not 1 <= rate <= MAX_RATE:
        raise SaccadeError(
            f"the sound {name} declares {rate:,} samples a second, expected 1 to {MAX_RATE:,}; save it again, "
            "or leave it out"
        )
    if count > max_seconds * rate:
        raise TooLongError(
            f"the sound {name} lasts {count / rate:,.1f} seconds, at most {max_seconds:g} are read; "
            "cut it, or raise reader.sound.max_seconds"
        )
    if count * channels > max_seconds * MAX_TOTAL_RATE:
        raise SaccadeError(
            f"the sound {name} has {channels} channels of {rate:,} samples a second, at most {MAX_TOTAL_RATE:,} in all "
            f"are read; write it with fewer"
        )


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Resample by soxr to as many samples as last as long, rounded up.

    Frequencies above half of the lower rate are removed, so that there is no aliasing.
    """
    if rate == new_rate or not len(samples):
        return samples
    import soxr

    count = -(-len(samples) * new_rate // rate)
    padded = np.pad(samples, (0, -(-rate // new_rate)))  # soxr rounds the number of samples down
    return soxr.resample(padded, rate, new_rate)[:count]
