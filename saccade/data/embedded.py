"""Data that saccade makes itself, so that everything can be tried without any: `embedded:NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path

from saccade.data.dates import dates
from saccade.data.letters import letters
from saccade.data.lines import did_you_mean
from saccade.errors import SaccadeError

Pairs = Iterator[tuple[str, str]]

# name: (maker of that many pairs, how many where the recipe does not say)
MAKERS: dict[str, tuple[Callable[[int], Pairs], int]] = {
    "dates": (lambda count: dates(count, seed=1), 50_000),
    "dates-heldout": (lambda count: dates(count, seed=2, heldout=True), 2_000),  # for validation
    "dates-test": (lambda count: dates(count, seed=3, heldout=True), 2_000),  # other dates of the same years
    "copy": (lambda count: letters(count, seed=1), 20_000),
    "copy-heldout": (lambda count: letters(count, seed=1, heldout=True), 1_000),
    "reverse": (lambda count: letters(count, seed=1, reverse=True), 20_000),
    "reverse-heldout": (lambda count: letters(count, seed=1, reverse=True, heldout=True), 1_000),
}


def read(name: str, examples: int | None) -> Iterator[tuple[int, str, str]]:
    """Numbered pairs, always the same ones."""
    maker, count = _find(name)
    for number, (source, target) in enumerate(maker(examples or count), 1):
        yield number, source, target


def version(name: str) -> str:
    """What the pairs of `read` depend on: the text of our code and babel's locale data."""
    _find(name)
    code = sha256()
    for file in ("dates.py", "embedded.py", "letters.py"):
        code.update(Path(__file__).with_name(file).read_bytes())
    return f"{name} {code.hexdigest()} babel {installed('babel')}"


def _find(name: str) -> tuple[Callable[[int], Pairs], int]:
    if name not in MAKERS:
        known = ", ".join(f"embedded:{known}" for known in MAKERS)
        raise SaccadeError(f"no embedded data {name!r}{did_you_mean(name, MAKERS)} (known: {known})")
    return MAKERS[name]
