"""Short stories of a small grammar, for encoders: who and where stay the same, and what happens has an order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from saccade.data.heldout import is_heldout
from saccade.data.sentences import ADJECTIVES, NOUNS, PLACES

BEGINNINGS = ("One day", "Long ago", "In spring", "On a cold day")
MIDDLES = ("Then", "A little later", "After that", "In the evening")
ENDS = ("At last", "In the end", "Since that day")
CAME = ("came to", "lived near", "worked at", "was born near")
FOUND = ("a letter", "an old map", "a golden key", "a small boat")
DID = ("hid", "lost", "sold", "kept", "opened", "carried")


def stories(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """So many stories, each of four to six sentences in one line; one in ten, chosen by its own hash, is held out."""
    rng = random.Random(f"stories {seed}")
    while count:
        text = " ".join(_story(rng))
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def _story(rng: random.Random) -> Iterator[str]:
    who, place, thing = rng.choice(NOUNS), rng.choice(PLACES), rng.choice(FOUND)
    hero, it = f"the {who}", f"the {thing.split()[-1]}"
    yield f"{rng.choice(BEGINNINGS)} a {rng.choice(ADJECTIVES)} {who} {rng.choice(CAME)} {place}."
    yield f"{rng.choice(MIDDLES)} {hero} found {thing} at {place}."
    for _ in range(rng.randint(1, 3)):
        yield f"{rng.choice(MIDDLES)} {hero} {rng.choice(DID)} {it}."
    yield f"{rng.choice(ENDS)} {hero} went away from {place} without {it}."
