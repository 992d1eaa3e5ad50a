"""Rows of letters to copy or to reverse: the right attention is known, the diagonal or the antidiagonal."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

from saccade.data.heldout import is_heldout


def letters(
    count: int, *, seed: int, reverse: bool = False, heldout: bool = False, lengths: tuple[int, int] = (4, 12)
) -> Iterator[tuple[str, str]]:
    """Pairs of `lengths` letters, from the first to the second; one row in ten, chosen by its own hash, is held out."""
    rng = random.Random(f"letters {seed}")
    while count:
        text = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(*lengths)))
        if is_heldout(text) == heldout:
            yield text, text[::-1] if reverse else text
            count -= 1
