"""Generated English texts with labels: for classification, regression and tagging."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from saccade.data.synthetic.grammar import (
    ADJECTIVES,
    INTRANSITIVE_VERBS,
    IRREGULAR_PLURALS,
    NOUNS,
    PLACES,
    TRANSITIVE_VERBS,
    generate_sentence,
    generate_subject,
)
from saccade.data.synthetic.heldout import is_heldout

THINGS = ("film", "book", "song", "meal", "hotel", "story", "game", "room", "play", "journey")
GOOD = ("good", "great", "lovely", "wonderful", "charming", "clever", "funny", "beautiful")
BAD = ("bad", "awful", "boring", "terrible", "dull", "ugly", "stupid", "sad")
INTENSIFIERS = ("", "", "very ", "really ", "rather ")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PARTICIPLES = {
    "see": "seen",
    "follow": "followed",
    "help": "helped",
    "know": "known",
    "like": "liked",
    "visit": "visited",
}


def heldout_by_hash(name: str) -> Callable[[Callable[[random.Random], Any]], Callable[..., Iterator[Any]]]:
    """Turn a function that samples one row into a generator of `count` rows of one split.

    The hash of a row's first text decides whether it is held out. `name` is a part of the random seed.
    """

    def decorate(sample: Callable[[random.Random], Any]) -> Callable[..., Iterator[Any]]:
        def generate(count: int, *, seed: int, heldout: bool = False) -> Iterator[Any]:
            rng = random.Random(f"{name} {seed}")
            while count:
                row = sample(rng)
                if is_heldout(row[0]) == heldout:
                    yield row
                    count -= 1

        return generate

    return decorate


@heldout_by_hash("opinions")
def generate_opinions(rng: random.Random) -> tuple[str, str]:
    """Sample an opinion and its sentiment: `not` inverts it, and only the clause after `but` counts."""
    positive = rng.random() < 0.5
    text = _generate_opinion(rng, positive=positive)
    if rng.random() < 0.6:
        text = f"{_generate_opinion(rng, positive=not positive)}, but {text}"
    elif rng.random() < 0.5:
        text = f"{_generate_opinion(rng, positive=positive)}, and {text}"
    return f"{text[0].upper()}{text[1:]}.", "positive" if positive else "negative"


def _generate_opinion(rng: random.Random, *, positive: bool) -> str:
    negated = rng.random() < 0.35
    word = rng.choice(GOOD if positive != negated else BAD)
    return (
        f"the {rng.choice(THINGS)} {rng.choice(('is', 'was'))} {'not ' if negated else rng.choice(INTENSIFIERS)}{word}"
    )


@heldout_by_hash("judgements")
def generate_judgements(rng: random.Random) -> tuple[str, str]:
    """Sample a sentence and whether its verb agrees with its subject: `right` or `wrong`."""
    agrees = rng.random() < 0.5
    return generate_sentence(rng, agrees=agrees), "right" if agrees else "wrong"


@heldout_by_hash("subjects")
def generate_subjects(rng: random.Random) -> tuple[str, str]:
    """Sample a sentence up to its verb, and the number that the verb must have: `plural` or `singular`."""
    plural = rng.random() < 0.5
    return generate_subject(rng, plural=plural), "plural" if plural else "singular"


@heldout_by_hash("paraphrases")
def generate_paraphrases(rng: random.Random) -> tuple[str, str, str]:
    """Sample an active and a passive sentence, and whether they mean the same: `same` or `other`."""
    one, other = (f"the {rng.choice(ADJECTIVES)} {noun}" for noun in rng.sample(NOUNS, 2))
    verb, same = rng.choice(TRANSITIVE_VERBS), rng.random() < 0.5
    about, by = (other, one) if same else (one, other)
    first, second = f"{one} {verb}s {other}.", f"{about} is {PARTICIPLES[verb]} by {by}."
    return first.capitalize(), second.capitalize(), "same" if same else "other"


@heldout_by_hash("amounts")
def generate_amounts(rng: random.Random) -> tuple[str, str]:
    """Sample a list of counted nouns and the sum of the counts, for regression."""
    counts = [rng.randrange(10) for _ in range(rng.randint(1, 3))]
    parts = [f"{NUMBERS[count]} {_inflect_noun(rng.choice(NOUNS), count)}" for count in counts]
    text = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{text[0].upper()}{text[1:]}.", str(sum(counts))


def _inflect_noun(noun: str, count: int) -> str:
    return noun if count == 1 else IRREGULAR_PLURALS.get(noun, f"{noun}s")


@heldout_by_hash("roles")
def generate_roles(rng: random.Random) -> tuple[str, str]:
    """Sample a sentence and a tag for each word: AGENT, ACT, PATIENT, PLACE or O, by its position."""
    words, tags = _generate_phrase(rng, "AGENT")
    verb = rng.choice(TRANSITIVE_VERBS if rng.random() < 0.7 else INTRANSITIVE_VERBS)
    words.append(f"{verb}s")
    tags.append("ACT")
    if verb in TRANSITIVE_VERBS:
        patient, patient_tags = _generate_phrase(rng, "PATIENT")
        words, tags = words + patient, tags + patient_tags
    if rng.random() < 0.4:
        place = f"near {rng.choice(PLACES)}".split()
        words, tags = words + place, tags + ["O"] * (len(place) - 1) + ["PLACE"]
    return " ".join(words), " ".join(tags)


def _generate_phrase(rng: random.Random, role: str) -> tuple[list[str], list[str]]:
    words = ["the", *([rng.choice(ADJECTIVES)] if rng.random() < 0.5 else []), rng.choice(NOUNS)]
    return words, ["O"] * (len(words) - 1) + [role]
