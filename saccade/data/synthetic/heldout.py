"""The split of generated examples into training and held-out ones."""

import zlib


def is_heldout(example: str) -> bool:
    """Whether an example is held out: one in ten, by its hash; so no example is ever in both splits."""
    return zlib.crc32(example.encode()) % 10 == 0
