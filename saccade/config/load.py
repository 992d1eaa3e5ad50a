"""Load, merge, override, validate and save recipes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import BaseModel, ValidationError

from saccade.bounds import (
    MAX_CHARACTERS,
    MAX_NESTING,
    InvalidTomlError,
    build_nesting_error,
    check_bounds,
    is_index,
    parse_toml,
)
from saccade.config.kinds import OwnKind, format_suggestion
from saccade.config.messages import explain_errors, strip_tags
from saccade.config.plugins import Kinds, check_requirements, find_recipe_folders, report_shadowed
from saccade.config.renames import Renamed, check_overrides, report_renames, translate
from saccade.config.schema import SCHEMA, Decoding, Recipe
from saccade.display import Tabular
from saccade.errors import SaccadeError
from saccade.files import atomic_write

RUN_RECIPE = "recipe.toml"  # file name of the recipe of a run
TARGET = "target"  # key of [tiny] with the score that the recipe should reach, for `saccade demo`
# Keys of [paper]: the paper's number, why ours is another one, where values were read, and which keys are our choice
PARAMETERS, DIFFERENCE, READ_IN, OURS = "parameters", "difference", "read_in", "ours"
FACTS = (TARGET, PARAMETERS, DIFFERENCE, READ_IN, OURS)  # keys of a form that are no settings
FORMS = {
    "tiny": "leave --tiny out and give data with --data SRC TGT",
    "paper": "leave --paper out: the recipe is not from a paper",
}  # tables of a recipe that change it on request, with what to do where a recipe has none
GivenKinds = Mapping[str, Any]  # names and classes or functions, or a `Kinds` of plugin files
Address = tuple[str | int, ...]  # ("reader", "stack", "dim"), ("objectives", 0, "alpha")


def load(
    name_or_path: str | Path,
    *,
    overrides: Sequence[str] = (),
    tiny: bool = False,
    paper: bool = False,
    kinds: GivenKinds | None = None,
) -> Recipe:
    """Load a recipe by name or file, with its table `[tiny]` or `[paper]` and then `key=value` overrides applied."""
    if tiny and paper:
        raise SaccadeError("a recipe is loaded in its tiny form or in that of its paper, got both; leave one out")
    path = find_recipe(name_or_path)
    origin, kinds = f"recipe '{name_or_path}'", Kinds(kinds)
    if path.name == RUN_RECIPE:
        check_requirements(path.parent, kinds)
    values = read_recipe(path)
    forms = {name: values.pop(name, None) for name in FORMS}
    renamed: Renamed = {}
    # No note about the recipe of a run: nobody edits it.
    values = translate(values, {}, kinds, {} if path.name == RUN_RECIPE else renamed)
    values.setdefault("name", path.stem)
    inherited: set[Address] = set()
    for form in [name for name, chosen in (("tiny", tiny), ("paper", paper)) if chosen]:
        table = forms[form]
        if not isinstance(table, dict):
            raise SaccadeError(f"{origin} has no [{form}] table; {FORMS[form]}")
        changes = {key: value for key, value in table.items() if key not in FACTS}
        values = merge(values, translate(changes, values, kinds, renamed), inherited)
    values = _apply_overrides(overrides, values, kinds, inherited, renamed)
    report_renames(origin, renamed)
    return validate(values, kinds=kinds, origin=origin, inherited=inherited)


class PaperForm(NamedTuple):
    """What a recipe says of the model of its paper."""

    parameters: float | None  # the number that the paper states; None where it states none
    difference: str  # why our number is another one, and what else differs; empty where nothing does
    read_in: str  # what values were compared with: a part of the paper, a summary, code; empty if from memory
    ours: tuple[str, ...]  # keys whose values are our choice, not the paper's


def read_paper_form(name_or_path: str | Path) -> PaperForm | None:
    """Read the facts in the table `[paper]` of a recipe; None where it has no such table."""
    table = read_recipe(find_recipe(name_or_path)).get("paper")
    if not isinstance(table, dict):
        return None
    return PaperForm(
        table.get(PARAMETERS), table.get(DIFFERENCE, ""), table.get(READ_IN, ""), tuple(table.get(OURS, ()))
    )


def override(
    recipe: Recipe, overrides: Sequence[str], *, kinds: GivenKinds | None = None, origin: str = "recipe"
) -> Recipe:
    """Apply `key=value` overrides to a recipe and validate the result; `kinds` default: those of the recipe."""
    inherited: set[Address] = set()
    renamed: Renamed = {}
    kinds = recipe.kinds if kinds is None else kinds
    values = _apply_overrides(overrides, _to_plain(recipe), kinds, inherited, renamed)
    report_renames(origin, renamed)
    return validate(values, kinds=kinds, origin=origin, inherited=inherited)


def change_decoding(recipe: Recipe, settings: Mapping[str, Any]) -> Decoding:
    """The decoding settings of a recipe with single ones changed; n hypotheses widen the beam to at least n."""
    values = {key: "none" if value is None else _to_plain(value) for key, value in settings.items()}
    if "beam" not in values and isinstance(values.get("n_best"), int):
        values["beam"] = max(values["n_best"], recipe.predict.beam)
    plain = _to_plain(recipe)
    plain["predict"] |= values
    return validate(plain, kinds=recipe.kinds, origin="settings").predict


def to_override_list(overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Overrides as `key=value` strings; {"train.steps": 2000} is ["train.steps=2000"]."""
    if isinstance(overrides, str):
        raise SaccadeError(f"overrides are a list of key=value strings, got {overrides!r}; put it into a list")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_dump_value(key, value)}" for key, value in overrides.items()]


def _dump_value(key: str, value: Any) -> str:
    """A value as TOML, on one line."""
    try:
        text = tomli_w.dumps({"value": "none" if value is None else _to_plain(value)})
    except TypeError:
        raise SaccadeError(
            f"override '{key}': expected a number, text, true or false, or a list of these, got a "
            f"{type(value).__name__}; give one of these"
        ) from None
    return " ".join(text.partition("=")[2].split("\n")).strip()


def _apply_overrides(
    overrides: Sequence[str], values: dict[str, Any], kinds: GivenKinds, inherited: set[Address], renamed: Renamed
) -> dict[str, Any]:
    """Merge `key=value` overrides, under old or new names, into plain values."""
    found: Renamed = {}
    for layer in _parse_overrides(overrides):
        values = merge(values, translate(layer, values, kinds, found), inherited)
    check_overrides([_get_key(item) for item in overrides], found)
    renamed |= found
    return values


def save(recipe: Recipe, path: Path) -> None:
    """Write the whole recipe, defaults included, atomically."""
    atomic_write(path, dump(recipe).encode())


def dump(recipe: Recipe) -> str:
    """The whole recipe as TOML."""
    return tomli_w.dumps({**_to_plain(recipe), "task": recipe.task.name})


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted keys."""
    if isinstance(values, dict | list) and values:
        items = values.items() if isinstance(values, dict) else enumerate(values)
        return {key: value for name, item in items for key, value in flatten(item, f"{prefix}.{name}").items()}
    return {prefix.removeprefix("."): values}


@dataclass(frozen=True)
class RecipeSummary:
    """One recipe in the list of `saccade.recipes()`."""

    name: str
    task: str
    about: str


class RecipeList(list[RecipeSummary], Tabular):
    """The recipes that come with saccade and with installed plugins."""

    def to_records(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self]


def describe_recipes() -> RecipeList:
    """List all recipes by name, with their task and a description."""
    found = [(name, read_recipe(get_recipe_path(name))) for name in list_recipes()]
    return RecipeList(
        RecipeSummary(name, values.get("task", "translate"), values.get("about", "")) for name, values in found
    )


def list_recipes() -> list[str]:
    """Names of the recipes that come with saccade and with installed plugins."""
    return sorted(_list_files(_get_recipe_folder(), *find_recipe_folders()))


def has_recipe(name: str) -> bool:
    """Whether a recipe of this name comes with saccade or an installed plugin; plugins are looked at last."""
    return name in _list_files(_get_recipe_folder()) or name in list_recipes()


def get_recipe_path(name: str) -> Path:
    """File of a recipe that comes with saccade or an installed plugin; saccade's own come first."""
    if not has_recipe(name):
        hint = format_suggestion("recipes", name, list_recipes())
        raise SaccadeError(f"unknown recipe '{name}'{hint}; or give the path of a .toml file")
    own = _list_files(_get_recipe_folder())
    return own[name] if name in own else _list_files(*find_recipe_folders())[name]


def _list_files(*folders: Path) -> dict[str, Path]:
    """Recipe files by name; the first folder that has a name comes first."""
    files = [file for folder in reversed(folders) for file in folder.iterdir() if file.suffix == ".toml"]
    return {file.stem: file for file in files}


def find_recipe(name_or_path: str | Path) -> Path:
    """File of a recipe given by name or path."""
    text, path = str(name_or_path), Path(name_or_path)
    if path.is_dir() and (path / RUN_RECIPE).exists() and not has_recipe(text):
        raise SaccadeError(
            f"'{text}' is a run, not a recipe: go on with `saccade train --resume {text}`, "
            f"or start anew from '{path / RUN_RECIPE}'"
        )
    if path.suffix != ".toml":
        return get_recipe_path(text)
    if not path.is_file():
        raise SaccadeError(f"recipe file '{text}' not found; `saccade recipes` lists the names that need no file")
    return path


def read_recipe(path: Path) -> dict[str, Any]:
    """Parse a recipe file; its values are not validated yet, except the schema version."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CHARACTERS + 1)
        text = content.decode("utf-8") if len(content) <= MAX_CHARACTERS else "x" * len(content)
    except UnicodeDecodeError as error:
        raise SaccadeError(f"recipe file '{path}' is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise SaccadeError(f"cannot read recipe file '{path}': {error.strerror}") from None
    values = parse_toml(text, f"recipe file '{path}'")
    version = values.get("schema_version", SCHEMA)
    if isinstance(version, int) and version > SCHEMA:
        raise SaccadeError(
            f"recipe file '{path}' has schema_version {version}, this saccade reads up to {SCHEMA}; "
            "a newer saccade wrote it: pip install --upgrade saccade"
        )
    return values


def merge(base: Any, layer: Any, inherited: set[Address], at: Address = ()) -> Any:
    """Merge `layer` into `base`, table by table; where a kind changes, keys of the old kind go to `inherited`."""
    if isinstance(base, list) and isinstance(layer, dict) and layer and all(map(is_index, layer)):
        return _merge_list(base, layer, inherited, at)
    if not isinstance(base, dict) or not isinstance(layer, dict):
        return copy.deepcopy(layer)
    if "kind" in layer and layer["kind"] != base.get("kind"):
        inherited |= {(*at, key) for key in base if key != "kind"}
    inherited -= {(*at, key) for key in layer}
    merged = {key: merge(base[key], layer[key], inherited, (*at, key)) for key in base.keys() & layer.keys()}
    return {key: merged[key] if key in merged else layer.get(key, base.get(key)) for key in [*base, *layer]}


def _merge_list(base: list[Any], layer: dict[str, Any], inherited: set[Address], at: Address) -> list[Any]:
    """Change single items of a list, as in `objectives.0.alpha=3`."""
    changed = list(base)
    for key, value in layer.items():
        index = int(key)
        if index >= len(base):
            where = ".".join(map(str, at))
            raise SaccadeError(f"{where}.{key}: the list has {len(base)} items, counted from 0")
        changed[index] = merge(base[index], value, inherited, (*at, index))
    return changed


def _parse_overrides(overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Overrides as nested tables; changes of a kind come before settings of that kind, in whatever order they are."""
    return [_parse_override(item) for item in sorted(overrides, key=lambda item: not _get_key(item).endswith("kind"))]


def _get_key(override: str) -> str:
    return override.partition("=")[0].strip()


def _parse_override(override: str) -> dict[str, Any]:
    """`train.steps=2000` as {"train": {"steps": 2000}}."""
    parts, text = _get_key(override).split("."), override.partition("=")[2]
    if "=" not in override or not all(parts):
        raise SaccadeError(f"override '{_shorten(override)}': expected key=value, such as train.steps=2000")
    if len(parts) > MAX_NESTING:
        raise build_nesting_error(f"override '{_shorten(override)}'")
    nested = {parts[-1]: parse_value(text)}
    for part in reversed(parts[:-1]):
        nested = {part: nested}
    return nested


def parse_value(text: str) -> Any:
    """Parse a TOML value; anything else is taken as text, so that names need no quotes in a shell."""
    origin = f"the value '{_shorten(text)}'"
    try:
        values = parse_toml(f"value = {text}", origin)
    except InvalidTomlError:
        return text
    return values["value"] if len(values) == 1 else text


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def validate(
    values: dict[str, Any],
    *,
    kinds: GivenKinds | None = None,
    origin: str = "recipe",
    inherited: Set[Address] = frozenset(),
) -> Recipe:
    """Build a recipe from plain values; an error lists all mistakes. Unknown keys in `inherited` are dropped."""
    check_bounds(values, origin)
    renamed: Renamed = {}
    bound = Kinds(kinds)  # one for each recipe: it notes which kinds the recipe uses
    values = translate(values, {}, bound, renamed)
    report_renames(origin, renamed)
    try:
        recipe = Recipe.model_validate(values, context={"kinds": bound})
        report_shadowed(bound)
        return recipe
    except ValidationError as error:
        unknown = {tuple(strip_tags(item["loc"])) for item in error.errors() if item["type"] == "extra_forbidden"}
        if stale := unknown & inherited:
            # Keys of a kind that an override replaced.
            return validate(_without(values, stale), kinds=kinds, origin=origin, inherited=inherited - stale)
        lines = explain_errors(error, values, bound)
    if len(lines) == 1:
        raise SaccadeError(f"{origin}: {lines[0]}")
    raise SaccadeError("\n  ".join([f"{origin} has {len(lines)} mistakes:", *lines]))


def _without(values: dict[str, Any], paths: set[Address]) -> dict[str, Any]:
    result = copy.deepcopy(values)
    for path in paths:
        table: Any = result
        for part in path[:-1]:
            table = table[part]
        del table[path[-1]]
    return result


def _to_plain(value: Any) -> Any:
    """Tables as dictionaries without None, except "none" where a key would otherwise get its default."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        own = value.settings() if isinstance(value, OwnKind) else {}
        items = {key: getattr(value, key) for key in fields}
        known = {
            key: "none" if item is None else _to_plain(item)
            for key, item in items.items()
            if item is not None or fields[key].default is not None
        }
        return known | {key: _to_plain(item) for key, item in own.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    return value


def _get_recipe_folder() -> Path:
    return Path(str(resources.files("saccade") / "recipes"))
