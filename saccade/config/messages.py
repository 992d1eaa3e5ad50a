"""What pydantic found wrong with a recipe, told in short lines: which key, what was expected, what was found."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from saccade.config.kinds import MARK, Custom, keyword_only, kind_of
from saccade.config.schema import Recipe

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


def explain(error: ValidationError, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """One line for each mistake, in the order of the recipe."""
    found = [item for item in error.errors(include_url=False) if not _follows(item)]
    return [f"{path(item['loc'])}: {_line(item, values, kinds)}" for item in found]


def path(location: tuple[str | int, ...]) -> str:
    """`reader.stack.dim` for where pydantic says ("reader", "#tokens", "stack", "#transformer", "dim")."""
    return ".".join(str(part) for part in keys(location)) or "recipe"


def keys(location: tuple[str | int, ...]) -> list[str | int]:
    """The keys of a location, without the tags that chose a kind."""
    return [part for part in location if not str(part).startswith(MARK)]


def _follows(item: Any) -> bool:
    """A list counts as too short when its items are wrong; those have been told already."""
    return bool(item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"])


def _line(item: Any, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    kind, got, context = item["type"], _short(item["input"]), item.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(item["loc"], values, kinds)
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {got}{_nearest(item['input'], context['expected'])}"
    if kind == "kind":
        return str(context["message"])
    if kind == "value_error":
        return str(context["error"])
    expected = _EXPECTED.get(kind) or _bound(kind, context)
    if expected == "a list" and isinstance(item["input"], str):
        return f'expected a list such as ["a", "b"], got {got}'
    return f"expected {expected}, got {got}" if expected else f"{item['msg']}, got {got}"


def _bound(kind: str, context: Mapping[str, Any]) -> str:
    words = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "more than {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "less than {lt}",
        "too_short": "at least {min_length} in the list",
        "too_long": "at most {max_length} in the list",
    }
    return words.get(kind, "").format(**context)


def _unknown_key(location: tuple[str | int, ...], values: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    wrong, known = str(location[-1]), _known_keys(location[:-1], values, kinds)
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"keys here: {', '.join(known)}"
    return f"unknown key; {hint}"


def _known_keys(location: tuple[str | int, ...], values: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """The keys of the table at `location`, found by walking down the schema and the recipe together."""
    tables: list[type[BaseModel]] = [Recipe]
    here: Any = values
    for part in location:
        if str(part).startswith(MARK):
            tables = [table for table in tables if part == (MARK if table is Custom else MARK + _kind(table))] or tables
            continue
        here = here[part]
        if isinstance(part, str):
            tables = [found for table in tables for found in _tables(table.model_fields[part].annotation)]
    if tables == [Custom]:
        return list(keyword_only(kinds[here["kind"]]))
    return [name for table in tables for name in table.model_fields]


def _kind(table: type[BaseModel]) -> str:
    return kind_of(table) if "kind" in table.model_fields else "corpora"


def _tables(hint: Any) -> list[type[BaseModel]]:
    """All tables that a type hint mentions."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return [hint] if issubclass(hint, BaseModel) else []
    inner = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return [table for part in inner for table in _tables(part)]


def _nearest(got: Any, expected: str) -> str:
    near = difflib.get_close_matches(str(got), expected.replace("'", "").replace(" or ", ", ").split(", "), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _short(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
