"""English texts with labels, for what classifies, measures and tags: made by small grammars, so that all is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from saccade.data.synthetic.grammar import ABOUT, ADJECTIVES, ALONE, IRREGULAR, NOUNS, PLACES, sentence, subject
from saccade.data.synthetic.heldout import is_heldout

THINGS = ("film", "book", "song", "meal", "hotel", "story", "game", "room", "play", "journey")
GOOD = ("good", "great", "lovely", "wonderful", "charming", "clever", "funny", "beautiful")
BAD = ("bad", "awful", "boring", "terrible", "dull", "ugly", "stupid", "sad")
INTENSE = ("", "", "very ", "really ", "rather ")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SEEN = {"see": "seen", "follow": "followed", "help": "helped", "know": "known", "like": "liked", "visit": "visited"}


def heldout_by_hash(make: Callable[[random.Random], Any]) -> Callable[..., Iterator[Any]]:
    """So many rows of a maker; one text in ten, chosen by its own hash, is held out."""

    def rows(count: int, *, seed: int, heldout: bool = False) -> Iterator[Any]:
        rng = random.Random(f"{make.__name__} {seed}")
        while count:
            row = make(rng)
            if is_heldout(row[0]) == heldout:
                yield row
                count -= 1

    return rows


@heldout_by_hash
def opinions(rng: random.Random) -> tuple[str, str]:
    """What somebody thinks of a thing: `not` turns an opinion round, and what stands after `but` counts."""
    liked = rng.random() < 0.5
    text = _opinion(rng, liked=liked)
    if rng.random() < 0.6:
        text = f"{_opinion(rng, liked=not liked)}, but {text}"
    elif rng.random() < 0.5:
        text = f"{_opinion(rng, liked=liked)}, and {text}"
    return f"{text[0].upper()}{text[1:]}.", "positive" if liked else "negative"


def _opinion(rng: random.Random, *, liked: bool) -> str:
    turned = rng.random() < 0.35
    word = rng.choice(GOOD if liked != turned else BAD)
    return f"the {rng.choice(THINGS)} {rng.choice(('is', 'was'))} {'not ' if turned else rng.choice(INTENSE)}{word}"


@heldout_by_hash
def judgements(rng: random.Random) -> tuple[str, str]:
    """Sentences of `embedded:sentences`, and some whose verb does not agree with its subject."""
    right = rng.random() < 0.5
    return sentence(rng, agrees=right), "right" if right else "wrong"


@heldout_by_hash
def subjects(rng: random.Random) -> tuple[str, str]:
    """How such sentences begin, and of which number their verb will be."""
    plural = rng.random() < 0.5
    return subject(rng, plural=plural), "plural" if plural else "singular"


@heldout_by_hash
def paraphrases(rng: random.Random) -> tuple[str, str, str]:
    """Two sentences, of which the second is passive: does it say the same, or the opposite?"""
    one, other = (f"the {rng.choice(ADJECTIVES)} {noun}" for noun in rng.sample(NOUNS, 2))
    verb, same = rng.choice(ABOUT), rng.random() < 0.5
    about, by = (other, one) if same else (one, other)
    first, second = f"{one} {verb}s {other}.", f"{about} is {SEEN[verb]} by {by}."
    return first.capitalize(), second.capitalize(), "same" if same else "other"


@heldout_by_hash
def amounts(rng: random.Random) -> tuple[str, str]:
    """How many there are in all."""
    counts = [rng.randrange(10) for _ in range(rng.randint(1, 3))]
    parts = [f"{NUMBERS[count]} {_counted(rng.choice(NOUNS), count)}" for count in counts]
    text = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{text[0].upper()}{text[1:]}.", str(sum(counts))


def _counted(noun: str, count: int) -> str:
    return noun if count == 1 else IRREGULAR.get(noun, f"{noun}s")


@heldout_by_hash
def roles(rng: random.Random) -> tuple[str, str]:
    """Who does something, to whom, and where: the same nouns are one or the other by their place."""
    words, tags = _phrase(rng, "AGENT")
    verb = rng.choice(ABOUT if rng.random() < 0.7 else ALONE)
    words.append(f"{verb}s")
    tags.append("ACT")
    if verb in ABOUT:
        more, their = _phrase(rng, "PATIENT")
        words, tags = words + more, tags + their
    if rng.random() < 0.4:
        place = f"near {rng.choice(PLACES)}".split()
        words, tags = words + place, tags + ["O"] * (len(place) - 1) + ["PLACE"]
    return " ".join(words), " ".join(tags)


def _phrase(rng: random.Random, role: str) -> tuple[list[str], list[str]]:
    words = ["the", *([rng.choice(ADJECTIVES)] if rng.random() < 0.5 else []), rng.choice(NOUNS)]
    return words, ["O"] * (len(words) - 1) + [role]
