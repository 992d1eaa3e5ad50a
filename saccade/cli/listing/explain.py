"""`saccade explain`: the meaning of a key of recipes, its values and default, and which recipes set it."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.arguments import Json, Plugins
from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config.descriptions import Key, Place

MAX_RECIPES = 8  # that set a key, listed by name
WIDTH = 100  # of the printed text
KeyName = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Key of a recipe (train.schedule.lr), the end of one (lr), a table (train.schedule), or words.",
    ),
]


def explain(key: KeyName, plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006  # typer copies it
    """Explain a key of recipes: its meaning, its values and default, where it applies, and which recipes set it."""
    from saccade.config.descriptions import find_keys, find_similar_paths, list_keys, list_places, translate_name

    query, kinds = key.partition("=")[0].strip(), load_plugins(*plugin)
    found: list[Key] = []
    tables: list[Place] = []
    commands: dict[str, str] = {}
    for places in map(list_places, (None, kinds)):  # plugins are imported only if a key is unknown
        tables = find_tables(query, places) or find_tables(translate_name(query), places)
        found = find_keys(query, list_keys(places), in_words=not tables)
        if found or tables:
            break
    else:
        commands = find_commands(query)
    if not found and not tables and not commands:
        near = find_similar_paths(query, list_keys(places))[:3]
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/configuration.md lists all keys"
        raise SaccadeError(f"no key of recipes is called '{key}', and no description has these words; {hint}")
    groups = group_by_meaning(found)
    if as_json:
        about = [{"command": name, "description": text} for name, text in commands.items()]
        print(json.dumps([*map(describe_key, groups), *map(describe_table, tables), *about], indent=2))
    else:
        lines = ["\n".join([name, *wrap(text)]) for name, text in commands.items()]
        print("\n\n".join([*map(format_table, tables), *map(format_key, groups), *lines]))


def find_commands(query: str) -> dict[str, str]:
    """Commands of saccade whose names or descriptions have these words, with their descriptions."""
    from saccade.cli import app

    described = {
        f"saccade {command.name or command.callback.__name__}": inspect.getdoc(command.callback) or ""
        for command in app.registered_commands
        if command.callback is not None
    }
    words = query.lower().split()
    return {name: text for name, text in described.items() if all(word in f"{name} {text}".lower() for word in words)}


def find_tables(query: str, places: Sequence[Place]) -> list[Place]:
    """Tables at this path, or else with this end of the path, or else of this kind, each once."""
    from saccade.config.descriptions import INDEX

    path = ".".join(INDEX if part.isdigit() else part for part in query.split(".")).removesuffix(f".{INDEX}")
    found = [place for place in places if path and place.path.removesuffix(f".{INDEX}") == path]
    found = found or [place for place in places if place.path.removesuffix(f".{INDEX}").endswith(f".{path}")]
    found = found or [place for place in places if place.kind_name == path]
    return list({place.table: place for place in reversed(found)}.values())[::-1]


def group_by_meaning(keys: Sequence[Key]) -> list[list[Key]]:
    """Keys with the same description, values and default are one key in several tables."""
    groups: dict[tuple[str, str, str, str], list[Key]] = {}
    for key in keys:
        groups.setdefault((key.leaf, key.values, key.default, key.description), []).append(key)
    return list(groups.values())


def describe_key(group: Sequence[Key]) -> dict[str, Any]:
    first, paths = group[0], list(dict.fromkeys(key.path for key in group))
    kinds = list(dict.fromkeys(key.kind for key in group if key.kind))
    return {
        "keys": paths,
        "values": first.values,
        "default": first.default,
        "description": first.description,
        "kinds": kinds,
        "recipes": read_recipe_values(group),
    }


def describe_table(place: Place) -> dict[str, Any]:
    return {
        "table": place.path,
        "kind": place.kind_name,
        "description": " ".join(place.about.split()),
        "keys": [name for name in place.table.model_fields if name != "schema_version"],
    }


def read_recipe_values(group: Sequence[Key]) -> dict[str, str]:
    """The value of a key in the file of each recipe that sets it."""
    from saccade.config.descriptions import get_values
    from saccade.config.load import get_recipe_path, list_recipes, read_recipe

    kinds = {(key.path.rpartition(".")[0], key.kind) for key in group}
    found = {}
    for name in list_recipes():
        values = read_recipe(get_recipe_path(name))
        for path in dict.fromkeys(key.path for key in group):
            table = path.rpartition(".")[0]
            tables = get_values(values, table) if table else [values]
            set_here = [
                one[group[0].leaf]
                for one in tables
                if isinstance(one, dict) and group[0].leaf in one
                if {(table, ""), (table, str(one.get("kind", "")))} & kinds or "kind" not in one
            ]
            if set_here and name not in found:
                found[name] = json.dumps(set_here[0], ensure_ascii=False)
    return found


def format_key(group: Sequence[Key]) -> str:
    """A key as a paragraph: its paths, description, values, default, kinds, and the recipes that set it."""
    facts = describe_key(group)
    lines = [*wrap(", ".join(facts["keys"]), indent=""), *wrap(facts["description"])]
    lines += wrap(f"values: {facts['values']}; default: {facts['default']}")
    if facts["kinds"]:
        lines += wrap(f"in tables with kind = {', '.join(facts['kinds'])}")
    recipes = [f"{name} ({value})" for name, value in facts["recipes"].items()]
    if recipes:
        more = f" and {len(recipes) - MAX_RECIPES} more" if len(recipes) > MAX_RECIPES else ""
        lines += wrap(f"set by the recipes {', '.join(recipes[:MAX_RECIPES])}{more}")
    return "\n".join(lines)


def format_table(place: Place) -> str:
    """A table as a paragraph: its path, kind and description, and its keys."""
    facts = describe_table(place)
    head = f"[{facts['table']}]" + (f' kind = "{facts["kind"]}"' if facts["kind"] else "")
    return "\n".join([head, *wrap(facts["description"]), *wrap(f"keys: {', '.join(facts['keys'])}")])


def wrap(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
