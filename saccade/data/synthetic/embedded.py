"""Generated text data, `embedded:NAME`, so that every recipe can be tried without downloading anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version as get_installed_version
from typing import Any

from saccade.data.sources.lines import did_you_mean
from saccade.data.synthetic.dates import generate_dates
from saccade.data.synthetic.grammar import generate_sentences, generate_stories
from saccade.data.synthetic.labelled import (
    generate_amounts,
    generate_judgements,
    generate_opinions,
    generate_paraphrases,
    generate_roles,
    generate_subjects,
)
from saccade.data.synthetic.molecules import generate_molecules
from saccade.data.synthetic.sequences import generate_letters, generate_numbers, generate_sessions, generate_sums
from saccade.errors import SaccadeError

Generator = tuple[Callable[[int], Any], int]  # a function from a number of examples to these; the default number


def _build_generator(generate: Callable[..., Any], *, heldout: bool) -> Callable[[int], Any]:
    return lambda count: generate(count, seed=1, heldout=heldout)


# Pairs of source and target, by name
PAIRS: dict[str, Generator] = {
    "dates": (lambda count: generate_dates(count, seed=1), 50_000),
    "dates-heldout": (lambda count: generate_dates(count, seed=2, heldout=True), 2_000),  # for validation
    "dates-test": (
        lambda count: generate_dates(count, seed=3, heldout=True),
        2_000,
    ),  # the same years as -heldout, other dates
    "copy": (lambda count: generate_letters(count, seed=1), 20_000),
    "copy-heldout": (lambda count: generate_letters(count, seed=1, heldout=True), 1_000),
    "reverse": (lambda count: generate_letters(count, seed=1, reverse=True), 20_000),
    "reverse-heldout": (lambda count: generate_letters(count, seed=1, reverse=True, heldout=True), 1_000),
    "numbers": (lambda count: generate_numbers(count, seed=1), 20_000),
    "numbers-heldout": (lambda count: generate_numbers(count, seed=1, heldout=True), 1_000),
}
# Documents
TEXTS: dict[str, Generator] = {
    "sentences": (lambda count: generate_sentences(count, seed=1), 20_000),
    "sentences-heldout": (lambda count: generate_sentences(count, seed=1, heldout=True), 1_000),
    "stories": (lambda count: generate_stories(count, seed=1), 20_000),
    "stories-heldout": (lambda count: generate_stories(count, seed=1, heldout=True), 1_000),
    "sessions": (lambda count: generate_sessions(count, seed=1), 20_000),
    "sessions-heldout": (lambda count: generate_sessions(count, seed=1, heldout=True), 1_000),
    "molecules": (lambda count: generate_molecules(count, seed=1), 20_000),
    "molecules-heldout": (lambda count: generate_molecules(count, seed=1, heldout=True), 1_000),
}
# Texts with labels; the kind is that of the writer that learns them
LABELLED: dict[str, tuple[str, Generator]] = {
    f"{name}{split}": (kind, (_build_generator(generate, heldout=bool(split)), 1_000 if split else 10_000))
    for name, kind, generate in (
        ("opinions", "label", generate_opinions),
        ("judgements", "label", generate_judgements),
        ("subjects", "label", generate_subjects),
        ("paraphrases", "label", generate_paraphrases),
        ("amounts", "number", generate_amounts),
        ("roles", "tags", generate_roles),
        ("sums", "label", generate_sums),
    )
    for split in ("", "-heldout")
}
# copy-N and reverse-N: sequences of 1 to N letters, with splits for validation and test
LETTERS_NAME = re.compile(r"(copy|reverse)-([0-9]+)(-heldout|-test)?")
MAX_LETTERS = 1_000
# Part of the keys of cached data and of the state that a run resumes from. Replace it by any other text when a
# generator gives other examples than before (tests/data/synthetic/test_versions.py fails then). It is a hash of the
# code of 0.8, whose examples are the same.
VERSION = "c0a7fd1cae8753e89bae6c342e83c38223130df59e3db86c75af9b0da78fb181"
SEEDS = {None: 1, "-heldout": 1, "-test": 2}


def read_pairs(name: str, examples: int | None) -> Iterator[tuple[int, str, str]]:
    """Yield (number, source, target), the same pairs in every call; `examples` None is the default number."""
    if name in TEXTS:
        raise SaccadeError(
            f'embedded:{name} has no pairs of texts; it is for language models (task = "language-model")'
        )
    if name in LABELLED:
        raise SaccadeError(f'embedded:{name} has no pairs of texts; it has labels (task = "classify")')
    generate, count = _find_generator(name)
    for number, (source, target) in enumerate(generate(examples or count), 1):
        yield number, source, target


def read_texts(name: str, examples: int | None) -> Iterator[tuple[int, str]]:
    """Yield (number, text), the same documents in every call; a pair becomes its source, a tab and its target."""
    generate, count = _find_generator(name)
    for number, example in enumerate(generate(examples or count), 1):
        yield number, example if name in TEXTS else "\t".join(example)


def read_labelled(name: str, examples: int | None, *, kind: str) -> Iterator[tuple[Any, ...]]:
    """Yield (number, text, label) or (number, text, text, label), the same rows in every call."""
    if name not in LABELLED:
        known = ", ".join(f"embedded:{other}" for other in LABELLED)
        raise SaccadeError(f"no embedded data with labels {name!r}{did_you_mean(name, LABELLED)} (known: {known})")
    own_kind, (generate, count) = LABELLED[name]
    if own_kind != kind:
        raise SaccadeError(f'embedded:{name} is for writer.kind = "{own_kind}", got "{kind}"')
    for number, row in enumerate(generate(examples or count), 1):
        yield number, *row


def get_version(name: str) -> str:
    """Identify the examples of a name in keys of the cache: they depend on the generators and on babel's data."""
    if name not in LABELLED:
        _find_generator(name)
    return f"{name} {VERSION} babel {get_installed_version('babel')}"


def _find_generator(name: str) -> Generator:
    if match := LETTERS_NAME.fullmatch(name):
        return _build_letters_generator(int(match[2]), reverse=match[1] == "reverse", split=match[3])
    generators = {**PAIRS, **TEXTS}
    if name not in generators:
        known = ", ".join(f"embedded:{known}" for known in (*generators, "copy-N", "reverse-N"))
        raise SaccadeError(f"no embedded data {name!r}{did_you_mean(name, generators)} (known: {known})")
    return generators[name]


def _build_letters_generator(max_letters: int, *, reverse: bool, split: str | None) -> Generator:
    if not 1 <= max_letters <= MAX_LETTERS:
        raise SaccadeError(
            f"embedded rows of letters have 1 to N letters, with N from 1 to {MAX_LETTERS:,}; got {max_letters}"
        )
    lengths, seed, heldout = (1, max_letters), SEEDS[split], split is not None
    count = 1_000 if heldout else 20_000
    return lambda n: generate_letters(n, seed=seed, reverse=reverse, heldout=heldout, lengths=lengths), count
