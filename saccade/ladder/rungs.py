"""The rungs of the ladder (rungs.toml): the recipe of each, and its overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from saccade.config.kinds import format_suggestion
from saccade.errors import SaccadeError

SIZES = ("class", "full")


@dataclass(frozen=True)
class Rung:
    """One architecture at one size."""

    name: str
    group: str  # "system", or "almost" for a Transformer with one component removed
    about: str
    recipe: str
    run: str  # the rung whose runs it uses: its own name, or that of one that differs in decoding only
    against: str  # the rung that it is compared with
    settings: tuple[str, ...]


@cache
def read_table() -> dict[str, Any]:
    """Return the contents of rungs.toml."""
    return tomllib.loads((resources.files("saccade") / "ladder" / "rungs.toml").read_text(encoding="utf-8"))


def choose_rungs(names: Sequence[str] = (), *, size: str = "class") -> list[Rung]:
    """Return the rungs of these names in this order; all rungs if there are no names."""
    check_size(size)
    rungs = {rung.name: rung for rung in (_build_rung(values, size) for values in read_table()["rung"])}
    for name in names:
        if name not in rungs:
            raise SaccadeError(f"unknown rung '{name}'{format_suggestion('rungs', name, rungs)}")
    return [rungs[name] for name in dict.fromkeys(names or rungs)]


def get_settings(size: str, data: str) -> list[str]:
    """Return the settings that all rungs share for this size and this data ("letters" or "files")."""
    check_size(size)
    table = read_table()
    return [*table["data"][data]["settings"], *table["size"][size]["settings"]]


def check_size(size: str) -> None:
    if size not in SIZES:
        raise SaccadeError(f"unknown size '{size}'{format_suggestion('sizes', size, SIZES)}")


def _build_rung(values: dict[str, Any], size: str) -> Rung:
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
