"""Which demonstrations there are: what the `[tiny]` tables of the recipes say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from saccade.config.load import read, shipped, shipped_path
from saccade.data.sources.lines import did_you_mean
from saccade.demo.targets import Target, target_of
from saccade.errors import SaccadeError

DEFAULT = "dates"
PREFIX = "embedded:"


@dataclass(frozen=True)
class Demonstration:
    """A system that can be tried without any data."""

    name: str
    data: str  # what it learns from, as embedded:NAME has it
    target: Target
    about: str


def demonstrations() -> list[Demonstration]:
    """All recipes whose `[tiny]` table learns from embedded data, the default one first."""
    found = []
    for name in shipped():
        values = read(shipped_path(name))
        if data := _embedded(values.get("tiny", {}).get("data", {}).get("train", [])):
            found.append(Demonstration(name, data, target_of(name, data), values.get("about", "")))
    return sorted(found, key=lambda one: one.name != DEFAULT)


def demonstration(name: str) -> Demonstration:
    """The one of that name."""
    known = {one.name: one for one in demonstrations()}
    if name not in known:
        hint = did_you_mean(name, known) or ";"
        raise SaccadeError(f"no demonstration is called '{name}'{hint} `saccade demo --list` lists them")
    return known[name]


def _embedded(train: Sequence[Any]) -> str:
    names = [file for corpus in train for file in corpus["files"] if file.startswith(PREFIX)]
    return names[0].removeprefix(PREFIX) if names else ""
