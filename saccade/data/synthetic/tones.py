"""Generated recordings of dialled telephone numbers: each key is two simultaneous tones (DTMF, ITU-T Q.23)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import numpy as np

from saccade.data.media.sound import Recording
from saccade.data.synthetic.heldout import is_heldout

RATE = 8_000  # samples a second, as in telephony
LOW_HERTZ, HIGH_HERTZ = (697, 770, 852, 941), (1209, 1336, 1477)  # of the rows and columns of keys
KEYS = "123456789*0#"
MAX_KEYS = 7  # of a number


def generate_recordings(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[Recording, str]]:
    """Yield `count` recordings of one split, and the keys of each."""
    for text in generate_numbers(count, seed=seed, heldout=heldout):
        yield Recording(synthesize_dialling(text, seed=seed), RATE), text


def generate_numbers(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """Yield `count` numbers of one split, of 3 to 7 keys."""
    rng = random.Random(f"tones {seed}")
    while count:
        text = "".join(rng.choices(KEYS, k=rng.randint(3, MAX_KEYS)))
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def synthesize_dialling(text: str, *, seed: int = 0) -> np.ndarray:
    """Synthesize a dialled number: tones and pauses of random length and loudness, with noise."""
    rng = np.random.default_rng([seed, zlib.crc32(text.encode())])
    parts = [np.zeros(_sample_duration(rng, 0.02, 0.1))]
    for key in text:
        parts += [_synthesize_tone(key, rng), np.zeros(_sample_duration(rng, 0.03, 0.12))]
    sound = np.concatenate(parts)
    return (sound + rng.normal(0, rng.uniform(0.005, 0.05), len(sound))).astype(np.float32)


def _synthesize_tone(key: str, rng: np.random.Generator) -> np.ndarray:
    row, column = divmod(KEYS.index(key), len(HIGH_HERTZ))
    times = np.arange(_sample_duration(rng, 0.05, 0.15)) / RATE
    low, high = (
        np.sin(2 * np.pi * (pitch * times + rng.uniform())) * rng.uniform(0.15, 0.4)
        for pitch in (LOW_HERTZ[row], HIGH_HERTZ[column])
    )
    return low + high


def _sample_duration(rng: np.random.Generator, shortest: float, longest: float) -> int:
    return int(RATE * rng.uniform(shortest, longest))
