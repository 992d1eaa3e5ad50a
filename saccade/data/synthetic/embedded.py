"""Data that saccade makes itself, so that everything can be tried without any: `embedded:NAME`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from saccade.data.sources.lines import did_you_mean
from saccade.data.synthetic.dates import dates
from saccade.data.synthetic.grammar import sentences, stories
from saccade.data.synthetic.labelled import amounts, judgements, opinions, paraphrases, roles, subjects
from saccade.data.synthetic.molecules import molecules
from saccade.data.synthetic.sequences import letters, sessions, sums
from saccade.errors import SaccadeError

Maker = tuple[Callable[[int], Any], int]


def _maker(made: Callable[..., Any], *, heldout: bool) -> Callable[[int], Any]:
    return lambda count: made(count, seed=1, heldout=heldout)


# name: (maker of that many pairs, how many where the recipe does not say)
MAKERS: dict[str, Maker] = {
    "dates": (lambda count: dates(count, seed=1), 50_000),
    "dates-heldout": (lambda count: dates(count, seed=2, heldout=True), 2_000),  # for validation
    "dates-test": (lambda count: dates(count, seed=3, heldout=True), 2_000),  # other dates of the same years
    "copy": (lambda count: letters(count, seed=1), 20_000),
    "copy-heldout": (lambda count: letters(count, seed=1, heldout=True), 1_000),
    "reverse": (lambda count: letters(count, seed=1, reverse=True), 20_000),
    "reverse-heldout": (lambda count: letters(count, seed=1, reverse=True, heldout=True), 1_000),
}
# The same for texts
TEXTS: dict[str, Maker] = {
    "sentences": (lambda count: sentences(count, seed=1), 20_000),
    "sentences-heldout": (lambda count: sentences(count, seed=1, heldout=True), 1_000),
    "stories": (lambda count: stories(count, seed=1), 20_000),
    "stories-heldout": (lambda count: stories(count, seed=1, heldout=True), 1_000),
    "sessions": (lambda count: sessions(count, seed=1), 20_000),
    "sessions-heldout": (lambda count: sessions(count, seed=1, heldout=True), 1_000),
    "molecules": (lambda count: molecules(count, seed=1), 20_000),
    "molecules-heldout": (lambda count: molecules(count, seed=1, heldout=True), 1_000),
}
# The same for texts with labels, each with its kind
LABELLED: dict[str, tuple[str, Maker]] = {
    f"{name}{part}": (kind, (_maker(made, heldout=bool(part)), 1_000 if part else 10_000))
    for name, kind, made in (
        ("opinions", "label", opinions),
        ("judgements", "label", judgements),
        ("subjects", "label", subjects),
        ("paraphrases", "label", paraphrases),
        ("amounts", "number", amounts),
        ("roles", "tags", roles),
        ("sums", "label", sums),
    )
    for part in ("", "-heldout")
}
# Rows of 1 to N letters: copy-N and reverse-N, each with other rows for validation and for a test.
UP_TO = re.compile(r"(copy|reverse)-([0-9]+)(-heldout|-test)?")
LONGEST = 1_000  # letters
CODE = (
    "dates.py", "embedded.py", "labelled.py", "sequences.py", "molecules.py", "grammar.py",
)  # fmt: skip
SEEDS = {None: 1, "-heldout": 1, "-test": 2}


def read(name: str, examples: int | None) -> Iterator[tuple[int, str, str]]:
    """Numbered pairs, always the same ones."""
    if name in TEXTS:
        raise SaccadeError(f'embedded:{name} has no pairs of texts; it is for language models (task = "write")')
    if name in LABELLED:
        raise SaccadeError(f'embedded:{name} has no pairs of texts; it has labels (task = "label")')
    maker, count = _find(name)
    for number, (source, target) in enumerate(maker(examples or count), 1):
        yield number, source, target


def read_texts(name: str, examples: int | None) -> Iterator[tuple[int, str]]:
    """Numbered texts, always the same ones; of pairs, source and target with a tab between them."""
    maker, count = _find(name)
    for number, made in enumerate(maker(examples or count), 1):
        yield number, made if name in TEXTS else "\t".join(made)


def read_labelled(name: str, examples: int | None, *, kind: str) -> Iterator[tuple[Any, ...]]:
    """Numbered texts with labels of a kind, always the same ones."""
    if name not in LABELLED:
        known = ", ".join(f"embedded:{other}" for other in LABELLED)
        raise SaccadeError(f"no embedded data with labels {name!r}{did_you_mean(name, LABELLED)} (known: {known})")
    its, (maker, count) = LABELLED[name]
    if its != kind:
        raise SaccadeError(f'embedded:{name} is for writer.kind = "{its}", got "{kind}"')
    for number, made in enumerate(maker(examples or count), 1):
        yield number, *made


def version(name: str) -> str:
    """What the pairs and texts depend on: the text of our code and babel's locale data."""
    if name not in LABELLED:
        _find(name)
    code = sha256()
    for file in CODE:
        code.update(Path(__file__).with_name(file).read_bytes())
    return f"{name} {code.hexdigest()} babel {installed('babel')}"


def _find(name: str) -> Maker:
    if asked := UP_TO.fullmatch(name):
        return _letters_up_to(int(asked[2]), reverse=asked[1] == "reverse", part=asked[3])
    makers = {**MAKERS, **TEXTS}
    if name not in makers:
        known = ", ".join(f"embedded:{known}" for known in (*makers, "copy-N", "reverse-N"))
        raise SaccadeError(f"no embedded data {name!r}{did_you_mean(name, makers)} (known: {known})")
    return makers[name]


def _letters_up_to(longest: int, *, reverse: bool, part: str | None) -> Maker:
    if not 1 <= longest <= LONGEST:
        raise SaccadeError(f"embedded rows of letters have 1 to N letters, with N from 1 to {LONGEST:,}; got {longest}")
    lengths, seed, heldout = (1, longest), SEEDS[part], part is not None
    count = 1_000 if heldout else 20_000
    return lambda n: letters(n, seed=seed, reverse=reverse, heldout=heldout, lengths=lengths), count
