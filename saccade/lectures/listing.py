"""The claims of the lecture notes by topic, read from the source of their checks. Nothing is imported or measured."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from saccade.lectures.tables import read_table

ENTRY_POINTS = "saccade.lectures"  # group of entry points of installed plugins, whose modules have checks too
QUICK, TRAINS, PROSE = "seconds", "minutes", "-"


@dataclass(frozen=True)
class Claim:
    """A row of the lectures: its number, the topic it belongs to, what it says, and how long its check takes."""

    row: int
    topic: str
    sentence: str
    where: str  # lecture and line
    duration: str  # "seconds"; "minutes" if the check trains a model; "-" where there is nothing to check


def list_claims() -> list[Claim]:
    """Return all rows, sorted by number."""
    files = sorted(Path(__file__).parent.rglob("*.py")) + find_plugin_files()
    found = [claim for file in files for claim in parse_checks(file)]
    found += [
        Claim(row["row"], get_topic(row["row"]), row["sentence"], row["where"], PROSE)
        for row in read_table("rows.toml")["rows"]
    ]
    return sorted(found, key=lambda claim: claim.row)


def group_by_topic(claims: list[Claim]) -> list[tuple[str, list[Claim]]]:
    """Return the claims of each topic, topics in the order of rows.toml."""
    order = list(read_table("rows.toml")["topics"])
    claims = sorted(claims, key=lambda claim: (order.index(claim.topic), claim.row))
    return [(topic, list(group)) for topic, group in groupby(claims, key=lambda claim: claim.topic)]


def get_topic(row: int) -> str:
    """Return the title of the topic of a row."""
    topics = read_table("rows.toml")["topics"]
    return next(title for title, ranges in topics.items() if any(first <= row <= last for first, last in ranges))


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
                    number, trains = ast.literal_eval(row), any(keyword.arg == "trains" for keyword in keywords)
                    words = ast.literal_eval(sentence), ast.literal_eval(where)
                    found.append(Claim(number, get_topic(number), *words, TRAINS if trains else QUICK))
    return found
