"""Telephone numbers as they sound while they are dialled: each key is two tones at once (DTMF, ITU-T Q.23)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import numpy as np

from saccade.data.media.sound import Recording
from saccade.data.synthetic.heldout import is_heldout

RATE = 8_000  # samples a second, as on the telephone
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)  # hertz of the rows and columns of the keys
KEYS = "123456789*0#"
LONGEST = 7  # keys of a number


def dialled(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Recording, str]]:
    """So many recordings, and the keys that are heard in each."""
    for text in numbers(count, seed=seed, heldout=heldout):
        yield Recording(dial(text, seed=seed), RATE), text


def numbers(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """So many numbers of 3 to 7 keys; one in ten, chosen by its own hash, is held out."""
    rng = random.Random(f"tones {seed}")
    while count:
        text = "".join(rng.choices(KEYS, k=rng.randint(3, LONGEST)))
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def dial(text: str, *, seed: int = 0) -> np.ndarray:
    """How a number sounds: tones and pauses of unequal length and loudness, with noise on the line."""
    rng = np.random.default_rng([seed, zlib.crc32(text.encode())])
    parts = [np.zeros(_samples(rng, 0.02, 0.1))]
    for key in text:
        parts += [_tone(key, rng), np.zeros(_samples(rng, 0.03, 0.12))]
    sound = np.concatenate(parts)
    return (sound + rng.normal(0, rng.uniform(0.005, 0.05), len(sound))).astype(np.float32)


def _tone(key: str, rng: np.random.Generator) -> np.ndarray:
    row, column = divmod(KEYS.index(key), len(HIGH))
    times = np.arange(_samples(rng, 0.05, 0.15)) / RATE
    low, high = (
        np.sin(2 * np.pi * (pitch * times + rng.uniform())) * rng.uniform(0.15, 0.4)
        for pitch in (LOW[row], HIGH[column])
    )
    return low + high


def _samples(rng: np.random.Generator, shortest: float, longest: float) -> int:
    return int(RATE * rng.uniform(shortest, longest))
