"""The claims of the lecture notes by topic, read from the source of their checks. Nothing is imported or measured."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.lectures.sources import parse_sources
from saccade.lectures.tables import read_table

ENTRY_POINTS = "saccade.lectures"  # group of entry points of installed plugins, whose modules have checks too
QUICK, TRAINS, PROSE = "seconds", "minutes", "-"
REMARKS = {QUICK: "", TRAINS: " [minutes]", PROSE: " [prose]"}
INDENT = 7  # columns before a sentence


@dataclass(frozen=True)
class Claim:
    """A row of the lectures: its number, the topic it belongs to, what it says, and how long its check takes."""

    row: int
    topic: str
    sentence: str
    where: str  # notes and line
    duration: str  # "seconds"; "minutes" if the check trains a model; "-" where there is nothing to check
    recipes: tuple[str, ...] = ()  # that it is about

    def as_dict(self) -> dict[str, Any]:
        """Return the claim for JSON."""
        sources = [source.as_dict() for source in parse_sources(self.where)]
        found = {"row": self.row, "topic": self.topic, "sentence": self.sentence, "duration": self.duration}
        return {**found, "recipes": list(self.recipes), "sources": sources}


def list_claims() -> list[Claim]:
    """Return all rows, sorted by number."""
    files = sorted(Path(__file__).parent.rglob("*.py")) + find_plugin_files()
    found = [claim for file in files for claim in parse_checks(file)]
    found += [
        build_claim(row["row"], row["where"], row["sentence"], duration=PROSE)
        for row in read_table("rows.toml")["rows"]
    ]
    return sorted(found, key=lambda claim: claim.row)


def build_claim(row: int, where: str, sentence: str, *, duration: str, recipes: Iterable[str] = ()) -> Claim:
    """Build a claim, which is about the recipes of its topic beside its own."""
    topic, about = get_topic(row)
    return Claim(row, topic, sentence, where, duration, tuple(sorted({*about, *recipes})))


def select_claims(claims: list[Claim], recipe: str) -> list[Claim]:
    """Return the claims about a recipe."""
    if found := [claim for claim in claims if recipe in claim.recipes]:
        return found
    raise SaccadeError(
        f"no claim of the lecture notes is about a recipe '{recipe}'; `saccade recipes` lists the recipes, and most of "
        "them have one"
    )


def group_by_topic(claims: list[Claim]) -> list[tuple[str, list[Claim]]]:
    """Return the claims of each topic, topics in the order of rows.toml."""
    order = list(read_table("rows.toml")["topics"])
    claims = sorted(claims, key=lambda claim: (order.index(claim.topic), claim.row))
    return [(topic, list(group)) for topic, group in groupby(claims, key=lambda claim: claim.topic)]


def get_topic(row: int) -> tuple[str, tuple[str, ...]]:
    """Return the title of the topic of a row, and the recipes that the topic is about."""
    topics = read_table("rows.toml")["topics"].items()
    title, topic = next((title, it) for title, it in topics if any(first <= row <= last for first, last in it["rows"]))
    return title, tuple(topic.get("recipes", ()))


def find_plugin_files() -> list[Path]:
    """Return the files of modules that installed plugins name, found without importing them."""
    found = []
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.value):
        package, *rest = point.module.split(".")
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder, *rest)
            found += [file for file in (path.with_suffix(".py"), *sorted(path.glob("*.py"))) if file.is_file()]
    return found


def parse_checks(file: Path) -> list[Claim]:
    """Return the claims of the functions in a file that have the decorator `check`."""
    found = []
    source = file.read_text(encoding="utf-8")
    for node in ast.parse(source).body if "@check(" in source else ():
        for call in getattr(node, "decorator_list", ()):
            match call:
                case ast.Call(func=ast.Name(id="check"), args=[row, where, sentence], keywords=keywords):
                    given = {keyword.arg: keyword.value for keyword in keywords}
                    words = [ast.literal_eval(part) for part in (row, where, sentence)]
                    recipes = ast.literal_eval(given["recipes"]) if "recipes" in given else ()
                    found.append(build_claim(*words, duration=TRAINS if "trains" in given else QUICK, recipes=recipes))
    return found


def format_claim(claim: Claim, *, sources: bool, width: int | None) -> str:
    """Format a claim as its number and its sentence, wrapped to the width if there is one."""
    text = f"{claim.row:>5}  {claim.sentence}{REMARKS[claim.duration]}"
    text += f" ({', '.join(source.code for source in parse_sources(claim.where))})" if sources else ""
    if width is None:
        return text
    return textwrap.fill(text, max(width, 2 * INDENT), subsequent_indent=" " * INDENT, break_on_hyphens=False)
