"""Validation errors of pydantic as short lines: the key, the expected value, the given one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from saccade.config.descriptions import find_keys, list_keys, list_places
from saccade.config.kinds import TAG_PREFIX, OwnKind, get_keyword_only, get_kind_name, is_table_class, list_tables
from saccade.config.plugins import Kinds
from saccade.config.schema import Data, Recipe
from saccade.config.task import find_task

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
}


def explain_errors(error: ValidationError, values: Mapping[str, Any], kinds: Kinds) -> list[str]:
    """One line per mistake, in the order of the recipe."""
    found = [item for item in error.errors(include_url=False) if not _is_consequence(item)]
    return [_format_line(item["loc"], _format_error(item, values, kinds)) for item in found]


def _format_line(location: tuple[str | int, ...], message: str) -> str:
    """The key and the message; a conflict between keys names them itself."""
    return f"{format_path(location)}: {message}" if strip_tags(location) else message


def format_path(location: tuple[str | int, ...]) -> str:
    """`reader.stack.dim` for the location ("reader", "#tokens", "stack", "#transformer", "dim")."""
    return ".".join(str(part) for part in strip_tags(location))


def strip_tags(location: tuple[str | int, ...]) -> list[str | int]:
    """The keys of a location, without the tags of kinds."""
    return [part for part in location if not str(part).startswith(TAG_PREFIX)]


def _is_consequence(item: Any) -> bool:
    """Whether an error follows from others: a list is too short when its items are invalid."""
    return bool(item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"])


def _format_error(item: Any, values: Mapping[str, Any], kinds: Kinds) -> str:
    kind, got, context = item["type"], _format_value(item["input"]), item.get("ctx", {})
    if kind == "extra_forbidden":
        return _explain_unknown_key(item["loc"], values, kinds)
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {got}{_suggest_nearest(item['input'], context['expected'])}"
    if kind == "kind":
        return str(context["message"])
    if kind == "value_error":
        return str(context["error"])
    expected = _EXPECTED.get(kind) or _format_bound(kind, context)
    if expected == "a list" and isinstance(item["input"], str):
        return f'expected a list such as ["a", "b"], got {got}'
    return f"expected {expected}, got {got}" if expected else f"{item['msg']}, got {got}"


def _format_bound(kind: str, context: Mapping[str, Any]) -> str:
    words = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "more than {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "less than {lt}",
        "too_short": "at least {min_length} in the list",
        "too_long": "at most {max_length} in the list",
    }
    return words.get(kind, "").format(**context)


def _explain_unknown_key(location: tuple[str | int, ...], values: Mapping[str, Any], kinds: Kinds) -> str:
    wrong, known = str(location[-1]), _list_known_keys(location[:-1], values, kinds)
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    elsewhere = find_elsewhere(format_path(location))
    if elsewhere or near:
        return f"unknown key; did you mean '{elsewhere or near[0]}'?"
    return f"unknown key; keys here: {', '.join(known)}"


def find_elsewhere(path: str) -> str:
    """The least nested key with the same last name, in the same top table: train.schedule.lr for train.lr or lr."""
    found = [key.path for key in find_keys(path, list_keys(list_places()), in_words=False)]
    inside = [key for key in found if "." not in path or key.split(".")[0] == path.split(".")[0]]
    inside = [key for key in inside if key != path]
    return min(inside, key=lambda key: key.count("."), default="")


def _list_known_keys(location: tuple[str | int, ...], values: Mapping[str, Any], kinds: Kinds) -> list[str]:
    """The keys of the table at `location`, found by descending schema and recipe together."""
    tables: list[type[BaseModel]] = [Recipe]
    here: Any = values
    task = find_task(values.get("task", "translate"), kinds)
    for part in location:
        if str(part).startswith(TAG_PREFIX):
            tables = [table for table in tables if part == TAG_PREFIX + _get_kind_or_corpora(table)] or tables
            continue
        here = here[part]
        if isinstance(part, str):
            tables = [found for table in tables for found in list_tables(table.model_fields[part].annotation)]
        if tables == [Data] and task is not None and task.data_table is not None:
            tables = [task.data_table]
        used = _get_used_kind(here, kinds)
        kind = kinds.peek(used) if used else None
        if is_table_class(kind):
            tables = [kind]
    used = _get_used_kind(here, kinds)
    if used and (own := [table for table in tables if issubclass(table, OwnKind)]):
        shared = [name for table in own[:1] for name in table.model_fields if name != "kind"]
        return [*get_keyword_only(kinds.find(used)), *shared]
    return [name for table in tables for name in table.model_fields]


def _get_used_kind(value: Any, kinds: Kinds) -> str:
    """The kind of a table of the recipe if it is a kind of the user's own, else ""; the recipe may be wrong here."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return kind if isinstance(kind, str) and kind in kinds.used else ""


def _get_kind_or_corpora(table: type[BaseModel]) -> str:
    if issubclass(table, OwnKind):
        return table.__name__
    return get_kind_name(table) if "kind" in table.model_fields else "corpora"


def _suggest_nearest(got: Any, expected: str) -> str:
    near = difflib.get_close_matches(str(got), expected.replace("'", "").replace(" or ", ", ").split(", "), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _format_value(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
