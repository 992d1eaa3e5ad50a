"""English sentences of a small grammar, for language models: verbs agree with subjects that stand far before them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from saccade.data.heldout import is_heldout

NOUNS = (
    "dog", "cat", "horse", "teacher", "child", "doctor", "sailor", "king", "friend", "farmer", "singer", "writer",
)  # fmt: skip
IRREGULAR = {"child": "children"}
ADJECTIVES = ("old", "young", "quiet", "clever", "tired", "happy", "small", "tall")
PLACES = ("the river", "the house", "the old bridge", "the market", "the garden", "the school")
ALONE = ("sleep", "laugh", "wait", "sing", "dream", "fall")
ABOUT = ("see", "follow", "help", "know", "like", "visit")
WHEN = ("every morning", "at night", "in winter", "again and again", "without a word")


def sentences(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """So many sentences; one in ten, chosen by its own hash, is held out."""
    rng = random.Random(f"sentences {seed}")
    while count:
        text = sentence(rng)
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def sentence(rng: random.Random, *, agrees: bool = True) -> str:
    """One of them; or one whose verb does not agree with its subject."""
    plural = rng.random() < 0.5
    words = [_noun_phrase(rng, plural=plural, depth=2), _verb_phrase(rng, plural=plural == agrees, depth=1)]
    if rng.random() < 0.4:
        words.append(rng.choice(WHEN))
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}."


def subject(rng: random.Random, *, plural: bool) -> str:
    """With what such a sentence begins: all before its verb."""
    text = _noun_phrase(rng, plural=plural, depth=2)
    return f"{text[0].upper()}{text[1:]}"


def _noun_phrase(rng: random.Random, *, plural: bool, depth: int) -> str:
    noun = rng.choice(NOUNS)
    words = [rng.choice(("the", "some") if plural else ("the", "a"))]
    if rng.random() < 0.4:
        words.append(rng.choice(ADJECTIVES))
    article_vowel = words[0] == "a" and len(words) > 1 and words[1][0] in "aeiou"
    words[0] = "an" if article_vowel else words[0]
    words.append(IRREGULAR.get(noun, f"{noun}s") if plural else noun)
    if depth and rng.random() < 0.35:
        words += ["near", rng.choice(PLACES)]
    elif depth and rng.random() < 0.35:
        words += ["that", _verb_phrase(rng, plural=plural, depth=depth - 1)]
    return " ".join(words)


def _verb_phrase(rng: random.Random, *, plural: bool, depth: int) -> str:
    if not depth or rng.random() < 0.4:
        return _verb(rng.choice(ALONE), plural=plural)
    return f"{_verb(rng.choice(ABOUT), plural=plural)} {_noun_phrase(rng, plural=rng.random() < 0.5, depth=depth - 1)}"


def _verb(verb: str, *, plural: bool) -> str:
    return verb if plural else f"{verb}s"
