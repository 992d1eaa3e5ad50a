"""The demonstrations: all recipes with a target whose `[tiny]` table uses embedded data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from saccade.config.load import TARGET, get_recipe_path, has_recipe, list_recipes, read_recipe
from saccade.data.sources.lines import did_you_mean
from saccade.demo.targets import Target, get_target
from saccade.errors import SaccadeError

DEFAULT_DEMO = "dates"
PREFIX = "embedded:"


@dataclass(frozen=True)
class Demonstration:
    """A recipe that can be tried without own data."""

    name: str
    data: str  # NAME of its training data embedded:NAME
    target: Target
    about: str


def list_demonstrations() -> list[Demonstration]:
    """List all demonstrations, the default one first."""
    found = []
    for name in list_recipes():
        values = read_recipe(get_recipe_path(name))
        small = values.get("tiny", {})
        data = _find_embedded(small.get("data", {}).get("train", []))
        if data and (target := get_target(name, data, small.get(TARGET))):
            found.append(Demonstration(name, data, target, values.get("about", "")))
    return sorted(found, key=lambda one: one.name != DEFAULT_DEMO)


def get_demonstration(name: str) -> Demonstration:
    """Return the demonstration of this name."""
    known = {one.name: one for one in list_demonstrations()}
    if name not in known and has_recipe(name):
        raise SaccadeError(
            f"recipe '{name}' has no table [tiny] with data of embedded:NAME and a target, so that there is no "
            f"demonstration of it; train it: saccade train {name}"
        )
    if name not in known:
        hint = did_you_mean(name, known) or ";"
        raise SaccadeError(f"unknown demonstration '{name}'{hint} `saccade demo --list` lists them")
    return known[name]


def _find_embedded(train: Sequence[Any]) -> str:
    names = [file for corpus in train for file in corpus["files"] if file.startswith(PREFIX)]
    return names[0].removeprefix(PREFIX) if names else ""
