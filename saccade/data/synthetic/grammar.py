"""Generated English sentences and stories; verbs agree in number with subjects that may be far away."""

from __future__ import annotations

import random
from collections.abc import Iterator

from saccade.data.synthetic.heldout import is_heldout

NOUNS = (
    "dog", "cat", "horse", "teacher", "child", "doctor", "sailor", "king", "friend", "farmer", "singer", "writer",
)  # fmt: skip
IRREGULAR_PLURALS = {"child": "children"}
ADJECTIVES = ("old", "young", "quiet", "clever", "tired", "happy", "small", "tall")
PLACES = ("the river", "the house", "the old bridge", "the market", "the garden", "the school")
INTRANSITIVE_VERBS = ("sleep", "laugh", "wait", "sing", "dream", "fall")
TRANSITIVE_VERBS = ("see", "follow", "help", "know", "like", "visit")
WHEN = ("every morning", "at night", "in winter", "again and again", "without a word")


def generate_sentences(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """Yield `count` sentences of one split."""
    rng = random.Random(f"sentences {seed}")
    while count:
        text = generate_sentence(rng)
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def generate_sentence(rng: random.Random, *, agrees: bool = True) -> str:
    """Sample a sentence; its verb agrees with the subject, or not."""
    plural = rng.random() < 0.5
    words = [
        _generate_noun_phrase(rng, plural=plural, depth=2),
        _generate_verb_phrase(rng, plural=plural == agrees, depth=1),
    ]
    if rng.random() < 0.4:
        words.append(rng.choice(WHEN))
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}."


def generate_subject(rng: random.Random, *, plural: bool) -> str:
    """Sample the start of a sentence, up to its verb."""
    text = _generate_noun_phrase(rng, plural=plural, depth=2)
    return f"{text[0].upper()}{text[1:]}"


def _generate_noun_phrase(rng: random.Random, *, plural: bool, depth: int) -> str:
    noun = rng.choice(NOUNS)
    words = [rng.choice(("the", "some") if plural else ("the", "a"))]
    if rng.random() < 0.4:
        words.append(rng.choice(ADJECTIVES))
    article_vowel = words[0] == "a" and len(words) > 1 and words[1][0] in "aeiou"
    words[0] = "an" if article_vowel else words[0]
    words.append(IRREGULAR_PLURALS.get(noun, f"{noun}s") if plural else noun)
    if depth and rng.random() < 0.35:
        words += ["near", rng.choice(PLACES)]
    elif depth and rng.random() < 0.35:
        words += ["that", _generate_verb_phrase(rng, plural=plural, depth=depth - 1)]
    return " ".join(words)


def _generate_verb_phrase(rng: random.Random, *, plural: bool, depth: int) -> str:
    if not depth or rng.random() < 0.4:
        return _inflect_verb(rng.choice(INTRANSITIVE_VERBS), plural=plural)
    verb = _inflect_verb(rng.choice(TRANSITIVE_VERBS), plural=plural)
    return f"{verb} {_generate_noun_phrase(rng, plural=rng.random() < 0.5, depth=depth - 1)}"


def _inflect_verb(verb: str, *, plural: bool) -> str:
    return verb if plural else f"{verb}s"


# ---- Short stories with the same hero and place throughout, whose sentences have an order


BEGINNINGS = ("One day", "Long ago", "In spring", "On a cold day")
MIDDLES = ("Then", "A little later", "After that", "In the evening")
ENDS = ("At last", "In the end", "Since that day")
ARRIVALS = ("came to", "lived near", "worked at", "was born near")
FINDS = ("a letter", "an old map", "a golden key", "a small boat")
DEEDS = ("hid", "lost", "sold", "kept", "opened", "carried")


def generate_stories(count: int, *, seed: int, heldout: bool = False) -> Iterator[str]:
    """Yield `count` stories of one split, each with four to six sentences in one line."""
    rng = random.Random(f"stories {seed}")
    while count:
        text = " ".join(_generate_story(rng))
        if is_heldout(text) == heldout:
            yield text
            count -= 1


def _generate_story(rng: random.Random) -> Iterator[str]:
    who, place, thing = rng.choice(NOUNS), rng.choice(PLACES), rng.choice(FINDS)
    hero, it = f"the {who}", f"the {thing.split()[-1]}"
    yield f"{rng.choice(BEGINNINGS)} a {rng.choice(ADJECTIVES)} {who} {rng.choice(ARRIVALS)} {place}."
    yield f"{rng.choice(MIDDLES)} {hero} found {thing} at {place}."
    for _ in range(rng.randint(1, 3)):
        yield f"{rng.choice(MIDDLES)} {hero} {rng.choice(DEEDS)} {it}."
    yield f"{rng.choice(ENDS)} {hero} went away from {place} without {it}."
