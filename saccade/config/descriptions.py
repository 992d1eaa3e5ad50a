"""Descriptions of the keys of recipes, read from the docstrings below the fields of their tables.

They are parsed from the source only when they are asked for, so that importing the schema stays fast; pydantic's
`use_attribute_docstrings` would parse the source of every table at import.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from saccade.config.kinds import OwnKind, is_table_class, list_tables
from saccade.config.plugins import Kinds
from saccade.config.renames import list_tables_of
from saccade.config.schema import Recipe
from saccade.config.table import ObjectiveTraits, Table, WriterTraits
from saccade.config.task import Task, list_own_tasks, list_tasks

MAX_WORD_MATCHES = 12  # keys listed for a query that is no key but a phrase in their descriptions
INDEX = "N"  # stands for the position in a list of tables: objectives.N.weight
NAMES_ELSEWHERE = {  # in other toolkits, without underscores: what it is called here
    **dict.fromkeys(("batchsize", "perdevicetrainbatchsize"), "train.batch_tokens"),
    **dict.fromkeys(("learningrate", "maxlr"), "train.schedule.lr"),
    **dict.fromkeys(("scheduler", "lrscheduler", "lrschedulertype"), "train.schedule"),
    **dict.fromkeys(("numepochs", "maxepochs", "numtrainepochs"), "train.epochs"),
    **dict.fromkeys(("maxsteps", "trainsteps", "numupdates"), "train.steps"),
    **dict.fromkeys(("numlayers", "nlayer", "nlayers", "numhiddenlayers"), "layers"),
    **dict.fromkeys(("hiddensize", "dmodel", "nembd", "embeddim"), "stack.dim"),
    **dict.fromkeys(("numheads", "nhead", "nheads", "numattentionheads"), "heads"),
    **dict.fromkeys(("ffndim", "dff", "intermediatesize", "dimfeedforward"), "ff"),
    **dict.fromkeys(("vocabsize", "vocabularysize"), "tokenizer.size"),
    **dict.fromkeys(("fp16", "bf16", "amp", "halfprecision"), "train.precision"),
    **dict.fromkeys(("maxgradnorm", "clipnorm", "gradclip"), "train.clip"),
    **dict.fromkeys(("gradientaccumulationsteps", "updatefreq"), "train.accumulate"),
    **dict.fromkeys(("earlystopping", "earlystoppingpatience"), "train.patience"),
    **dict.fromkeys(("evalsteps", "evalinterval", "valcheckinterval"), "train.valid_every"),
    **dict.fromkeys(("savesteps", "saveinterval"), "train.save_every"),
    **dict.fromkeys(("logging", "logger", "reportto"), "train.loggers"),
    **dict.fromkeys(("maxseqlength", "maxseqlen", "blocksize"), "data.max_length"),
    **dict.fromkeys(("maxnewtokens", "maxgeneratedtokens"), "predict.max_length"),
    **dict.fromkeys(("beamsize", "numbeams"), "predict.beam"),
    **dict.fromkeys(("positionalencoding", "positionencoding", "positionembeddings"), "positions"),
    **dict.fromkeys(("gradientcheckpointing", "activationcheckpointing"), "train.recompute"),
}


def get_descriptions(table: type[BaseModel]) -> dict[str, str]:
    """The description of every key of a table, those of its base classes included, each as one paragraph."""
    found: dict[str, str] = {}
    for base in reversed(table.__mro__):
        if issubclass(base, Table):
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


class Key(NamedTuple):
    """A key of a recipe: where it stands, what it accepts and what it does."""

    path: str  # such as train.schedule.lr; the position in a list of tables is N: objectives.N.weight
    kind: str  # value of `kind` that chooses its table; empty where there is only one table at this place
    values: str  # what it accepts, such as "number > 0"
    default: str
    description: str

    @property
    def leaf(self) -> str:
        return self.path.rpartition(".")[2]


class Place(NamedTuple):
    """A table of a recipe at one of the places where it may stand."""

    path: str
    kind_name: str  # value of `kind` that chooses it; empty where there is only one table at this place
    table: type[BaseModel]

    @property
    def about(self) -> str:
        return inspect.getdoc(self.table) or "" if self.table.__doc__ else ""


def list_places(kinds: Kinds | None = None) -> list[Place]:
    """Every table of a recipe with its path, those of `kinds` included."""
    found = _list_places(Recipe, "")
    if kinds is None:
        return found
    for task in list_own_tasks(kinds):
        if task.data_table is not None:
            found += [place for place in _list_places(task.data_table, "data") if place not in found]
    for kind in map(kinds.peek, kinds.list_names()):
        if is_table_class(kind) and issubclass(kind, WriterTraits | ObjectiveTraits):
            found += _list_places(kind, "writer" if issubclass(kind, WriterTraits) else f"objectives.{INDEX}")
    return found


def _list_places(table: type[BaseModel], path: str) -> list[Place]:
    found = [Place(path, get_only_kind(table), table)]
    for name, field in table.model_fields.items():
        index = f".{INDEX}" if _holds_list(field.annotation) else ""
        for inner in list_tables_of(table, name):
            found += _list_places(inner, f"{path}.{name}{index}".strip("."))
    return found


def _holds_list(annotation: Any) -> bool:
    """Whether tables stand at this place in a list."""
    return get_origin(annotation) is tuple or any(_holds_list(part) for part in get_args(annotation))


def list_keys(places: Sequence[Place]) -> list[Key]:
    """Every key of these tables that is no table itself."""
    return [
        Key(f"{place.path}.{name}".strip("."), place.kind_name, *described)
        for place in places
        for name, *described in _describe_fields(place.table)
    ]


@cache  # many tables stand at several places
def _describe_fields(table: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Name, accepted values, default and description of each key of a table that is no table itself."""
    descriptions = get_descriptions(table)
    return [
        (name, format_type(field.annotation, field.metadata), format_default(field), descriptions[name])
        for name, field in table.model_fields.items()
        if name != "schema_version" and not list_tables_of(table, name)
    ]


def find_keys(query: str, keys: Sequence[Key], *, in_words: bool = True) -> list[Key]:
    """Keys that a user may mean: of this path, else with this end of the path, else of this last name.

    `train.lr` finds `train.schedule.lr`. With `in_words`, where there is none, `learning rate` finds every key whose
    description has these words.
    """
    for name in (query.strip(), translate_name(query)):
        path = ".".join(INDEX if part.isdigit() else part for part in name.split("."))
        leaf = path.rpartition(".")[2]
        for found in (
            [key for key in keys if key.path == path],
            [key for key in keys if key.path.endswith(f".{path}")],
            _prefer_same_table([key for key in keys if key.leaf == leaf], path),
        ):
            if found:  # train.seed before writer.stack.chunks.seed
                return sorted(found, key=lambda key: key.path.count("."))
    words = re.split("[_ ]", query.lower()) if in_words else []
    ranked = [(_rank_description(key.description.lower(), words), key) for key in keys]
    described = [(rank, key) for rank, key in ranked if rank is not None]
    return [key for _, key in sorted(described, key=lambda item: item[0])][:MAX_WORD_MATCHES]


def _rank_description(description: str, words: Sequence[str]) -> tuple[bool, int] | None:
    """Rank what is about the words, as one phrase and at its beginning, before what only mentions them.

    None if a word is not in the description; a word of the query may be the beginning of one.
    """
    found = [re.search(rf"\b{re.escape(word)}", description) for word in words]
    if not words or not all(found):
        return None
    return " ".join(words) not in description, min(match.start() for match in found if match)


def translate_name(query: str) -> str:
    """Return the name here of what other toolkits call so; otherwise the query."""
    leaf = query.strip().rpartition(".")[2].lower()
    return NAMES_ELSEWHERE.get(re.sub("[_ -]", "", leaf), query)


def _prefer_same_table(found: list[Key], path: str) -> list[Key]:
    """Those under the first part of the given path, if there are any."""
    return [key for key in found if key.path.split(".")[0] == path.split(".")[0]] or found


def find_similar_paths(query: str, keys: Sequence[Key]) -> list[str]:
    """Paths of the keys whose last name is spelled most like that of the query."""
    leaf = query.rpartition(".")[2]
    near = difflib.get_close_matches(leaf, {key.leaf for key in keys}, n=3, cutoff=0.6)
    return list(dict.fromkeys(key.path for name in near for key in keys if key.leaf == name))


def get_values(recipe: Mapping[str, Any], path: str) -> list[Any]:
    """The values at a path in the plain values of a recipe, several where the path goes through a list."""
    here: list[Any] = [recipe]
    for part in path.split("."):
        if part == INDEX:
            here = [item for value in here if isinstance(value, list) for item in value]
        else:
            here = [value[part] for value in here if isinstance(value, Mapping) and part in value]
    return here


def get_only_kind(table: type[BaseModel]) -> str:
    """The kind by which a recipe chooses this table; empty where the table itself has several."""
    field = table.model_fields.get("kind")
    names = get_args(field.annotation) if field else ()
    return str(names[0]) if len(names) == 1 else ""


def format_type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """A type in the words of a recipe: `number >= 0`, `"post" or "pre"`."""
    origin = get_origin(annotation)
    if annotation is Task:
        return " or ".join(f'"{name}"' for name in list_tasks())
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        name = " or ".join(format_type(part) for part in parts)
        return f'{name}, or "none"' if len(parts) < len(get_args(annotation)) else name
    if origin is tuple:
        inner = [part for part in get_args(annotation) if part is not Ellipsis]
        many = "list of " if Ellipsis in get_args(annotation) else f"{len(inner)} x "
        return many + format_type(inner[0])
    if hasattr(annotation, "__metadata__"):
        first, *rest = get_args(annotation)
        return format_type(first, rest)
    if inspect.isclass(annotation) and issubclass(annotation, OwnKind):
        return "a kind of your own"
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", dict: "table"}
    return words.get(origin or annotation, str(annotation)) + _format_limits(metadata)


def _format_limits(metadata: Sequence[Any]) -> str:
    """Bounds, from pydantic's Field or from annotated_types."""
    parts = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    found = []
    for part in parts:
        match part:
            case Ge(bound):
                found.append(f">= {bound:g}")
            case Gt(bound):
                found.append(f"> {bound:g}")
            case Le(bound):
                found.append(f"<= {bound:g}")
            case Lt(bound):
                found.append(f"< {bound:g}")
    return " " + ", ".join(found) if found else ""


def format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    value = value.name if isinstance(value, Task) else value
    if value is None:
        return '"none"'
    text = json.dumps(value) if isinstance(value, bool | tuple) else repr(value)
    return re.sub(r"'", '"', text)
