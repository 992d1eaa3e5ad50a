"""The grid of a sweep: keys of the recipe with the values, or the range of values, that are tried."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.config.load import parse_value, to_override_list
from saccade.errors import SaccadeError

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(?::(\w+))?")
UNSAFE = re.compile(r"[^A-Za-z0-9.+-]+")  # in names of folders
MAX_NAME = 40  # characters of a value in the name of a run
OPENING, CLOSING = "[{", "]}"
SIGNIFICANT_DIGITS = 4  # of a number that the search suggests, so that it can be typed again


@dataclass(frozen=True)
class Axis:
    """A key and the values that are tried, as texts of overrides."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """A key and the range of numbers that is searched."""

    key: str
    low: float
    high: float
    is_log: bool
    is_whole: bool

    def format_number(self, number: float) -> str:
        """A number of this range as the text of an override."""
        if self.is_whole:
            return str(int(number))
        return repr(min(max(float(f"{number:.{SIGNIFICANT_DIGITS}g}"), self.low), self.high))


Grid = Sequence[Axis | Range]


@dataclass(frozen=True)
class Configuration:
    """One value for each key of a grid; it is trained with several seeds."""

    values: tuple[tuple[str, str], ...]

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.values]

    def describe(self) -> str:
        """The values with the short names of their keys: `lr=0.001, layers=2`."""
        names = shorten_keys([key for key, _ in self.values])
        return ", ".join(f"{names[key]}={value}" for key, value in self.values)

    def format_name(self) -> str:
        """The same as a part of the name of a folder: `lr-0.001-layers-2`."""
        names = shorten_keys([key for key, _ in self.values])
        return "-".join(f"{names[key]}-{clean_name(value)}" for key, value in self.values)


def clean_name(value: str) -> str:
    """A value as a part of the name of a folder; a hash tells values apart that would become the same text."""
    text = UNSAFE.sub("_", value).strip("_")
    if text == value and len(text) <= MAX_NAME:
        return text
    return f"{text[:MAX_NAME]}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last parts of each key, as many as tell all of them apart."""
    for count in itertools.count(1):
        names = {key: ".".join(key.split(".")[-count:]) for key in keys}
        if len(set(names.values())) == len(names):
            return names
    raise AssertionError("keys of a mapping differ")


def parse_words(words: Sequence[str]) -> dict[str, str]:
    """Parse `KEY=VALUES`, as `--grid` has it."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise SaccadeError(f"--grid {word}: expected KEY=VALUE,VALUE,..., such as train.schedule.lr=1e-4,3e-4")
        if key in found:
            raise SaccadeError(f"--grid names {key} twice; give all of its values in one list: {key}=A,B,...")
        found[key] = text
    return found


def parse_grid(grid: Mapping[str, Any]) -> Grid:
    """Parse the values of each key: text as on the command line, or a list of values in Python."""
    if not grid:
        raise SaccadeError(
            "a sweep needs keys and their values, such as --grid train.schedule.lr=1e-4,3e-4,1e-3; "
            "`saccade explain` describes the keys"
        )
    return [
        _parse_text(key, values) if isinstance(values, str) else build_axis(key, _to_texts(key, values))
        for key, values in grid.items()
    ]


def _to_texts(key: str, values: Any) -> list[str]:
    """The values of a key in Python as texts of overrides."""
    if isinstance(values, Mapping) or not isinstance(values, Sequence):
        raise SaccadeError(f"grid: expected a list of values of {key}, got {values!r}; put it into a list")
    return [word.partition("=")[2] for value in values for word in to_override_list({key: value})]


def _parse_text(key: str, text: str) -> Axis | Range:
    if match := RANGE.fullmatch(text.strip()):
        return _build_range(key, *match.groups())
    return build_axis(key, split_values(text))


def _build_range(key: str, first: str, last: str, scale: str | None) -> Range:
    low, high = float(first), float(last)
    if scale not in (None, "log"):
        raise SaccadeError(f"range of {key}: unknown scale '{scale}'; expected {first}..{last} or {first}..{last}:log")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SaccadeError(f"range of {key}: expected two numbers LOW..HIGH, the lower one first, got {first}..{last}")
    if scale and low <= 0:
        raise SaccadeError(f"range of {key}: a logarithmic one must begin above 0, got {first}; leave :log out")
    return Range(
        key, low, high, is_log=bool(scale), is_whole=all(isinstance(parse_value(t), int) for t in (first, last))
    )


def split_values(text: str) -> list[str]:
    """Split at commas that are not inside of brackets or quotes: `[1, 2],[3]` are two values."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and depth <= 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def build_axis(key: str, texts: Sequence[str]) -> Axis:
    """Refuse a list without values, with an empty one or with the same one twice."""
    if not [text for text in texts if text]:
        raise SaccadeError(f"the grid has no values of {key}; give some as {key}=A,B,...")
    if not all(texts):
        raise SaccadeError(f"the grid has an empty value of {key}, got '{','.join(texts)}'; is there a comma too many?")
    parsed = [parse_value(text) for text in texts]
    for i, value in enumerate(parsed):
        if any(type(value) is type(other) and value == other for other in parsed[:i]):
            raise SaccadeError(f"the grid has the value {texts[i]} of {key} twice; leave one out")
    return Axis(key, tuple(texts))


def count_configurations(grid: Grid) -> int:
    """The number of combinations of the values of a grid."""
    return math.prod(len(list_values(axis)) for axis in grid)


def list_configurations(grid: Grid) -> list[Configuration]:
    """Every combination of the values of a grid."""
    keys, choices = [axis.key for axis in grid], [list_values(axis) for axis in grid]
    return [Configuration(tuple(zip(keys, values, strict=True))) for values in itertools.product(*choices)]


def list_probes(grid: Grid) -> list[Configuration]:
    """Every value of a grid alone, to find those that a recipe refuses."""
    return [Configuration(((axis.key, value),)) for axis in grid for value in list_values(axis)]


def list_values(axis: Axis | Range) -> tuple[str, ...]:
    """The values of a key; of a range, its two ends."""
    if isinstance(axis, Axis):
        return axis.values
    return axis.format_number(axis.low), axis.format_number(axis.high)


def describe_grid(grid: Grid) -> dict[str, Any]:
    """A grid as JSON, by which a second start recognizes it."""
    return {
        axis.key: list(axis.values) if isinstance(axis, Axis) else f"{axis.low:g}..{axis.high:g}{':log' * axis.is_log}"
        for axis in grid
    }
