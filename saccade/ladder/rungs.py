"""The rungs of the ladder, from rungs.toml: which recipe each is, and what is changed in it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from saccade.config.kinds import expected_names
from saccade.errors import SaccadeError

SIZES = ("class", "full")


@dataclass(frozen=True)
class Rung:
    """One architecture at one size."""

    name: str
    group: str  # "system", or "almost" a Transformer
    about: str
    recipe: str
    run: str  # the rung whose training it has: its own name, or that of one that differs in decoding only
    against: str  # the rung that it is compared with
    settings: tuple[str, ...]


@cache
def read_table() -> dict[str, Any]:
    """The whole of rungs.toml."""
    return tomllib.loads((resources.files("saccade") / "ladder" / "rungs.toml").read_text(encoding="utf-8"))


def choose(names: Sequence[str] = (), *, size: str = "class") -> list[Rung]:
    """The rungs of these names, in this order; all of them where none is named."""
    check_size(size)
    rungs = {rung.name: rung for rung in (_rung(values, size) for values in read_table()["rung"])}
    for name in names:
        if name not in rungs:
            raise SaccadeError(f"unknown rung '{name}'{expected_names('rungs', name, rungs)}")
    return [rungs[name] for name in dict.fromkeys(names or rungs)]


def settings_of(size: str, data: str) -> list[str]:
    """What all rungs have in common: for this size, and for "letters" or "files"."""
    check_size(size)
    table = read_table()
    return [*table["data"][data]["settings"], *table["size"][size]["settings"]]


def check_size(size: str) -> None:
    if size not in SIZES:
        raise SaccadeError(f"unknown size '{size}'{expected_names('sizes', size, SIZES)}")


def _rung(values: dict[str, Any], size: str) -> Rung:
    system = read_table()["system"][values["system"]][size]
    return Rung(
        name=values["name"],
        group=values["group"],
        about=values["about"],
        recipe=system["recipe"],
        run=values.get("run", values["name"]),
        against=values.get("against", ""),
        settings=(*system["settings"], *values.get("settings", [])),
    )
