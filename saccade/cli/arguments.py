"""Arguments that the parser cannot take by itself: `--data SRC TGT` with one or two values, and `key=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated

import typer

from saccade.errors import SaccadeError

PAIRED = ("--data", "--valid", "--test")
OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=\S.*|[A-Za-z_][\w.]*=", re.DOTALL)
SINGLE = re.compile(r"embedded:.*|.*\.(tsv|csv|jsonl|json|parquet)(\.(gz|xz))?")  # sources that hold both sides

Data = Annotated[
    list[str],
    typer.Option("--data", metavar="SRC [TGT]", help="Two aligned files, or one with both sides. Repeatable."),
]
Valid = Annotated[
    list[str], typer.Option("--valid", metavar="SRC [TGT]", help="The same for validation; or a share to hold out.")
]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout.")]


def gather(arguments: Sequence[str]) -> list[str]:
    """Joins the values after each `--data`, `--valid` and `--test` into one, so that an ordinary parser can go on."""
    left = list(arguments)
    joined: list[str] = []
    while left:
        word = left.pop(0)
        if word == "--":
            return [*joined, word, *left]
        name, equals, first = word.partition("=")
        if name not in PAIRED:
            joined.append(word)
            continue
        values = [first] if equals else _take(left)
        if values and not SINGLE.fullmatch(values[0]):
            values += _take(left)
        if not values:
            raise SaccadeError(f"{name} needs one or two values: {name} SRC TGT, or {name} FILE with both sides")
        joined.append(f"{name}={json.dumps(values)}")
    return joined


def corpora(joined: Sequence[str]) -> list[list[str]]:
    """The values of `--data`, `--valid` or `--test` as `gather` joined them: one list of files for each corpus."""
    return [json.loads(item) for item in joined]


def overrides(words: Sequence[str]) -> list[str]:
    """`words`, each of which must be `key=value`."""
    for word in words:
        if not is_override(word):
            raise SaccadeError(f"unexpected argument '{word}'; expected key=value, such as train.steps=2000")
    return list(words)


def separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Texts and settings; a word without spaces that looks like key=value is a setting, so that typos are found."""
    found = [word for word in words if is_override(word) and " " not in word.partition("=")[0]]
    return [word for word in words if word not in found], found


def is_override(word: str) -> bool:
    return OVERRIDE.fullmatch(word) is not None


def _take(left: list[str]) -> list[str]:
    """The next word, unless it is an option or an override."""
    if not left or (left[0].startswith("-") and left[0] != "-") or is_override(left[0]):
        return []
    return [left.pop(0)]
