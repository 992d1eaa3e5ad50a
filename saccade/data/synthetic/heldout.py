"""Which of the examples that are made here are held out."""

import zlib


def is_heldout(example: str) -> bool:
    """One in ten, chosen by its own hash: however many are drawn, and by whatever seed, none is on both sides."""
    return zlib.crc32(example.encode()) % 10 == 0
