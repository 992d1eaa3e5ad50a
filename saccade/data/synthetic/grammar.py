"""English sentences of a small grammar, for language models: verbs agree with subjects that stand far before them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from saccade.data.synthetic.heldout import is_heldout

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


# ---- Short stories of a small grammar, for encoders: who and where stay the same, and what happens has an order.


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
