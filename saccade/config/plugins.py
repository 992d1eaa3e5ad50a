"""Kinds that users bring: with `kinds=` in Python, by a plugin file (`--plugin FILE.py`) or by an installed package.

A plugin is a Python module with a dictionary `KINDS` from names to classes, functions or objects. Plugins are never
loaded because a recipe or a run says so: a file must be named by the user, and an installed package declares the entry
point `saccade.plugins`. Entry points are loaded only when a kind is not known otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.parsing import read_json

ENTRY_POINTS = "saccade.plugins"  # group of entry points of installed plugins
RECIPE_ENTRY_POINTS = "saccade.recipes"  # group of entry points that name folders with recipes
ATTRIBUTE = "KINDS"  # name of the dictionary in a plugin
PLUGINS_FILE = "plugins.json"  # in a run: the kinds that it needs and the plugins that they came from
SHOWN_HASH_DIGITS = 12


@dataclass(frozen=True)
class Source:
    """Where a kind came from."""

    plugin: str  # file name of a plugin, or name and version of an installed package; empty for `kinds=` in Python
    sha256: str = ""  # of the file with the plugin's module
    installed: bool = False  # by an entry point of a package

    @property
    def is_ours(self) -> bool:
        """Whether it comes with saccade, whose releases read the runs of earlier ones."""
        return self.installed and self.plugin.partition(" ")[0] == "saccade"

    def hash_code(self, kind: Any) -> str:
        """Identify the code of a kind in keys of the cache: by the plugin's hash, or that of its own source code."""
        if self.sha256:
            return self.sha256
        try:
            return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
        except (OSError, TypeError):  # typed into an interpreter
            return "unknown"

    def format_requirement(self, kind: str) -> str:
        """What is missing without this plugin, and how to bring it."""
        if self.installed:
            package = self.plugin.split(" ")[0]
            return f"the kind '{kind}' of the package {self.plugin}; install it: pip install {package}"
        if not self.plugin:
            return (
                f"the kind '{kind}', which was given in Python; pass kinds={{'{kind}': ...}} again, "
                f"or --plugin FILE.py with {ATTRIBUTE} = {{'{kind}': ...}}"
            )
        digits = self.sha256[:SHOWN_HASH_DIGITS]
        return f"the kind '{kind}' of the plugin {self.plugin} (sha256 {digits}); add --plugin {self.plugin}"


class Kinds(Mapping[str, Any]):
    """Kinds by name. As a mapping it has those that were given; `find` looks into installed plugins too."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.given: Mapping[str, Any] = given.given if isinstance(given, Kinds) else dict(given or {})
        self.sources: dict[str, Source] = dict(given.sources) if isinstance(given, Kinds) else {}
        self.used: dict[str, Source] = {}  # kinds that `find` returned, for the run of a recipe
        self.shadowed: set[str] = set()  # names that the recipe has where saccade's own kind of that name is meant

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)

    def __hash__(self) -> int:
        return hash(frozenset(self.given))

    def find(self, name: str) -> Any:
        """The kind of this name: a given one, or else that of an installed plugin; None if there is none."""
        if name in self.given:
            self.used[name] = self.sources.get(name, Source(""))
        elif name in load_installed():
            self.used[name] = load_installed()[name][1]
        return self.peek(name)

    def peek(self, name: str) -> Any:
        """The same as `find`, for a kind that the recipe does not use."""
        return self.given[name] if name in self.given else load_installed().get(name, (None, None))[0]

    def list_names(self) -> list[str]:
        """Names of all kinds, installed ones included."""
        return [*self.given, *(name for name in load_installed() if name not in self.given)]

    def describe_failures(self) -> str:
        """One clause about installed plugins that cannot be loaded, for a message about an unknown kind."""
        return "".join(f"; {problem}" for problem in find_installed()[1])


# ---- files


def load_plugins(*paths: str | Path) -> Kinds:
    """Load plugin files; all of their kinds together, for `kinds=`."""
    kinds = Kinds()
    given: dict[str, Any] = {}
    files: dict[str, str | Path] = {}
    for path in paths:
        found, source = load_file(Path(path))
        for name, kind in found.items():
            if name in given and given[name] is not kind:
                raise SaccadeError(f"plugins {files[name]} and {path} both have a kind '{name}'; rename one of them")
            given[name], kinds.sources[name], files[name] = kind, source, path
    kinds.given = given
    return kinds


def load_file(path: Path) -> tuple[Mapping[str, Any], Source]:
    """The kinds of one plugin file, which is run as a module of its own; its folder is not searched for others."""
    if path.suffix != ".py":
        raise SaccadeError(f"a plugin is a Python file, such as plugin.py, got '{path}'")
    try:
        code = path.read_bytes()
    except OSError as error:
        raise SaccadeError(f"cannot read the plugin '{path}': {(error.strerror or str(error)).lower()}") from None
    source = Source(path.name, hashlib.sha256(code).hexdigest())
    return get_kinds(run_file(path.resolve(), source.sha256), f"plugin '{path}'"), source


@functools.cache
def run_file(path: Path, sha256: str) -> ModuleType:
    """Run a plugin file once; the same content gives the same classes again."""
    name = f"saccade_plugin_{path.stem}_{sha256[:SHOWN_HASH_DIGITS]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        del sys.modules[name]
        raise SaccadeError(f"plugin '{path.name}' cannot be loaded: {format_failure(error, path)}") from error
    return module


def format_failure(error: Exception, path: Path) -> str:
    """An exception of a plugin's code in one line, with the line number in its file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")


def get_kinds(module: Any, what: str) -> Mapping[str, Any]:
    """The dictionary KINDS of a plugin's module, or of the object that an entry point names."""
    kinds = module if isinstance(module, Mapping) else getattr(module, ATTRIBUTE, None)
    if not isinstance(kinds, Mapping) or not all(isinstance(name, str) and name for name in kinds):
        got = "none" if kinds is None else type(kinds).__name__
        if isinstance(kinds, Mapping):
            got = f"the name {next(name for name in kinds if not isinstance(name, str) or not name)!r}"
        raise SaccadeError(f"{what} needs a dictionary {ATTRIBUTE} = {{'name': class or function}}, got {got}")
    return kinds


# ---- installed packages


def load_installed() -> Mapping[str, tuple[Any, Source]]:
    """The kinds of all installed plugins by name."""
    return find_installed()[0]


@functools.cache
def find_installed() -> tuple[Mapping[str, tuple[Any, Source]], tuple[str, ...]]:
    """Load the entry points `saccade.plugins`: their kinds by name, and what went wrong with those that fail."""
    found: dict[str, tuple[Any, Source]] = {}
    problems = []
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.value):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            kinds = get_kinds(point.load(), f"plugin '{package}'")
        except Exception as error:  # a foreign package may raise anything; it must not end a command that does without
            problems.append(f"the installed plugin {package} cannot be loaded: {type(error).__name__}: {error}")
            continue
        source = Source(package, hash_module(point.module), installed=True)
        for name, kind in kinds.items():
            if name in found and found[name][0] is not kind:
                problems.append(f"the installed plugins {found[name][1].plugin} and {package} both have '{name}'")
                continue
            found[name] = (kind, source)
    return found, tuple(problems)


def hash_module(name: str) -> str:
    """SHA-256 of the source file of an imported module, or of all of its package; empty where it has none."""
    top = sys.modules.get(name.partition(".")[0])
    file = getattr(top, "__file__", None)
    if not file:
        return ""
    files = sorted(Path(file).parent.rglob("*.py")) if hasattr(top, "__path__") else [Path(file)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@functools.cache
def find_recipe_folders() -> tuple[Path, ...]:
    """Folders with recipes of installed plugins, `PACKAGE:FOLDER` of an entry point each. Nothing is imported."""
    values = sorted(point.value for point in importlib.metadata.entry_points(group=RECIPE_ENTRY_POINTS))
    return tuple(folder for value in values for folder in locate_folder(*value.split(":")))


def locate_folder(package: str, *parts: str) -> list[Path]:
    """The folder of a package that is not imported for it; none where it is not there."""
    try:  # a name with dots would import the package around it
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        return []
    found = [Path(place, *parts) for place in (spec and spec.submodule_search_locations) or ()]
    return [folder for folder in found if len(parts) == 1 and parts[0].isidentifier() and folder.is_dir()]


def load_modules(group: str) -> None:
    """Import the modules that a group of entry points names, for what they register."""
    for point in sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.value):
        try:
            point.load()
        except Exception as error:  # a foreign package may raise anything
            package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
            reason = f"{type(error).__name__}: {error}"
            raise SaccadeError(f"the installed plugin {package} cannot be loaded: {reason}; update it") from error


def report_shadowed(kinds: Kinds) -> None:
    """Print a note about given kinds that a recipe seems to name, but where a kind of saccade has that name."""
    for name in sorted(kinds.shadowed - kinds.used.keys()):
        report_unused(name)


@functools.cache
def report_unused(name: str) -> None:
    print(
        f"note: your kind '{name}' is not used: '{name}' is a kind of saccade already, which comes first; give yours "
        "another name",
        file=sys.stderr,
        flush=True,
    )


# ---- what a run needs


def write_requirements(kinds: Kinds, folder: Path) -> None:
    """Write the kinds that a recipe uses, with their plugins, into the folder of its run; nothing if there are none."""
    if kinds.used:
        items = [{"kind": kind, **asdict(source)} for kind, source in sorted(kinds.used.items())]
        atomic_write(folder / PLUGINS_FILE, (json.dumps(items, indent=2) + "\n").encode())


def check_requirements(folder: Path, kinds: Kinds) -> None:
    """Raise if a kind that the run in this folder needs is not there; print a note if its plugin has changed."""
    for kind, source in read_requirements(folder):
        if kinds.find(kind) is None:
            raise SaccadeError(f"run '{folder}' needs {source.format_requirement(kind)}{kinds.describe_failures()}")
        now = kinds.used[kind]
        if source.sha256 and now.sha256 and now.sha256 != source.sha256 and not now.is_ours:
            report_change(str(folder), source, now)


def read_requirements(folder: Path) -> list[tuple[str, Source]]:
    """Kinds that a run needs, and where they came from when it was trained."""
    path = folder / PLUGINS_FILE
    if not path.is_file():
        return []
    try:
        items = read_json(path)
        return [(item["kind"], Source(item["plugin"], item["sha256"], item["installed"])) for item in items]
    except (ValueError, KeyError, TypeError):
        raise SaccadeError(f"'{path}' is not a list of kinds and plugins; put back the file of the run") from None


@functools.cache
def report_change(folder: str, before: Source, now: Source) -> None:
    """Print a note, once, that a plugin is not the one that a run was trained with."""
    digits = f"{before.sha256[:SHOWN_HASH_DIGITS]} then, {now.sha256[:SHOWN_HASH_DIGITS]} now"
    print(
        f"note: run '{folder}' was trained with another plugin or version: {before.plugin} then, {now.plugin} now "
        f"(sha256 {digits}); outputs may differ",
        file=sys.stderr,
        flush=True,
    )
