"""Rows of letters to copy or to reverse: the right attention is known, the diagonal or the antidiagonal."""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Iterator


def letters(count: int, *, seed: int, reverse: bool = False, heldout: bool = False) -> Iterator[tuple[str, str]]:
    """Pairs of 4 to 12 letters; one row in ten, chosen by its own hash, is held out and never trained on."""
    rng = random.Random(f"letters {seed}")
    while count:
        text = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 12)))
        if (zlib.crc32(text.encode()) % 10 == 0) == heldout:
            yield text, text[::-1] if reverse else text
            count -= 1
