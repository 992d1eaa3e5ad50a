"""Descriptions of the keys of recipes, read from the docstrings below the fields of their tables.

They are parsed from the source only when they are asked for, so that importing the schema stays fast; pydantic's
`use_attribute_docstrings` would parse the source of every table at import.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from saccade.config.kinds import OwnKind, list_tables
from saccade.config.schema import Recipe


def get_descriptions(table: type[BaseModel]) -> dict[str, str]:
    """The description of every key of a table, those of its base classes included, each as one paragraph."""
    found: dict[str, str] = {}
    for base in reversed(table.__mro__):
        if base.__module__.startswith("saccade.config.") and issubclass(base, BaseModel):
            found |= _parse_module(base.__module__).get(base.__name__, {})
    return {key: found.get(key, "") for key in table.model_fields}


def list_recipe_tables() -> list[type[BaseModel]]:
    """Every table that a recipe can have, without users' own kinds."""
    found: dict[type[BaseModel], None] = {}
    waiting: list[type[BaseModel]] = [Recipe]
    while waiting:
        table = waiting.pop(0)
        if not issubclass(table, OwnKind) and table not in found:
            found[table] = None
            waiting += [inner for field in table.model_fields.values() for inner in list_tables(field.annotation)]
    return list(found)


@cache
def _parse_module(name: str) -> dict[str, dict[str, str]]:
    """Class: {field: docstring below it}, of all classes of a module."""
    source = Path(str(sys.modules[name].__file__)).read_text(encoding="utf-8")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_parse_fields(node)) for node in classes}


def _parse_fields(node: ast.ClassDef) -> list[tuple[str, str]]:
    found = []
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found.append((name, " ".join(text.split())))
    return found
