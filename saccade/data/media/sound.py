"""Recordings as numbers: samples from -1 to 1 of one channel, at the rate that is wanted."""

from __future__ import annotations

import math
import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.errors import SaccadeError
from saccade.files import get_reason, open_source

CROSSINGS = 16  # zeros of the sinc on each side that make one sample of a new rate
LONGEST = 3600.0  # seconds of a recording, unless told otherwise
DENSEST = 384_000  # samples of a second, of all channels together: 8 channels at 48 kHz
FASTEST = 768_000  # samples of a second, of one channel: twice what studios record
BLOCK = 1 << 22  # numbers that are looked at together where the rate changes
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au")


class Recording(NamedTuple):
    """Samples (N,) from -1 to 1, and how many of them are a second."""

    samples: np.ndarray
    rate: int

    def save(self, path: str | Path) -> None:
        """Writes WAV of 16 bits; what is louder than it can tell is cut."""
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(self.rate)
            file.writeframes(np.round(np.clip(self.samples, -1, 1) * 32767).astype("<i2").tobytes())


def read_sound(file: str | Path | bytes, *, name: str = "", longest: float = LONGEST) -> Recording:
    """The samples (N,) of a recording, all channels as their mean, and how many there are in a second.

    WAV needs nothing but Python; what Python does not know of it, and all other kinds, need soundfile.
    """
    name = name or open_source(file, unnamed="sound")[1]
    try:
        samples, rate = _read_wave(file, name, longest)
    except (wave.Error, EOFError, RuntimeError):  # the last one where a part of the file says a wrong length
        samples, rate = _read_other(file, name, longest)
    except SaccadeError:
        raise
    except (OSError, ValueError) as error:  # the latter where it is no name of a file
        raise SaccadeError(f"cannot read the sound {name}: {get_reason(error)}") from None
    if not len(samples):
        raise SaccadeError(f"the sound {name} is empty: it has no samples; leave it out")
    if not np.isfinite(samples).all():
        raise SaccadeError(f"the sound {name} has samples that are no finite numbers; write it anew, or leave it out")
    return Recording(samples.mean(axis=1, dtype=np.float32), rate)


def _read_wave(file: str | Path | bytes, name: str, longest: float) -> tuple[np.ndarray, int]:
    with wave.open(open_source(file)[0], "rb") as sound:
        count, rate = sound.getnframes(), sound.getframerate()
        width, channels = sound.getsampwidth(), sound.getnchannels()
        if width > 4:
            raise wave.Error(f"samples of {width} bytes")
        check_length(count, rate, name, longest, channels=channels)
        data = sound.readframes(count)
    if len(data) < count * width * channels:
        here = len(data) // (width * channels)
        raise SaccadeError(f"the sound {name} is cut off: {count:,} samples announced, {here:,} found; copy it again")
    return _numbers(data, width).reshape(-1, channels), rate


def _numbers(data: bytes, width: int) -> np.ndarray:
    """Samples of 1 byte (without a sign), 2, 3 or 4 bytes, from -1 to 1."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data, width = wide.tobytes(), 4
    return np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)


def _read_other(file: str | Path | bytes, name: str, longest: float) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except ImportError:
        raise SaccadeError(
            f"the sound {name} is no WAV of whole numbers; such and other kinds are read by soundfile: "
            "pip install soundfile, or write it as WAV"
        ) from None
    try:
        with soundfile.SoundFile(open_source(file)[0]) as sound:
            check_length(sound.frames, sound.samplerate, name, longest, channels=sound.channels)
            return sound.read(dtype="float32", always_2d=True), sound.samplerate
    except (RuntimeError, OSError) as error:
        why = getattr(error, "error_string", str(error)).splitlines()[0]  # the whole text names objects in memory
        why = why.removeprefix("Error : ").rstrip(". ")
        raise SaccadeError(f"cannot read the sound {name}: {why}; is it a sound?") from None


def check_length(count: int, rate: int, name: str, longest: float, *, channels: int = 1) -> None:
    """Before the samples are read: a small file may say that it has very many."""
    if not 1 <= rate <= FASTEST:
        raise SaccadeError(
            f"the sound {name} says that it has {rate:,} samples a second, expected 1 to {FASTEST:,}; write it anew, "
            "or leave it out"
        )
    if count > longest * rate:
        raise SaccadeError(
            f"the sound {name} lasts {count / rate:,.1f} seconds, at most {longest:g} are read; "
            "cut it, or raise reader.sound.longest"
        )
    if count * channels > longest * DENSEST:
        raise SaccadeError(
            f"the sound {name} has {channels} channels of {rate:,} samples a second, at most {DENSEST:,} in all are "
            f"read; write it with fewer"
        )


def resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """The samples at another rate: the sinc of all samples nearby, within a window (Smith 1984).

    What the smaller one of both rates cannot hold is taken out, so that nothing comes back at another pitch.
    """
    if rate == wanted or not len(samples):
        return samples
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    cutoff = min(1.0, up / down)
    reach = math.ceil(CROSSINGS / cutoff)
    count = -(-len(samples) * up // down)
    padded = np.pad(samples, (reach, reach + 1))
    made, taps = np.empty(count, np.float32), np.arange(-reach, reach + 2)
    block = up * max(1, BLOCK // len(taps))
    for first in range(min(up, count)):  # every `up`-th new sample lies between old ones in the same way
        away = taps - (first * down % up) / up
        weights = cutoff * np.sinc(cutoff * away) * np.cos(np.pi / 2 * np.clip(away / (reach + 1), -1, 1)) ** 2
        weights = weights.astype(np.float32)
        for begin in range(first, count, block):  # a minute at once would take a gigabyte
            new = np.arange(begin, min(begin + block, count), up)
            made[new] = padded[(new * down // up)[:, None] + (taps + reach)] @ weights
    return made
