"""Writes docs/cli.md from the --help of every verb, docs/configuration.md from the schema of recipes, and
docs/papers.md from their tables [paper].

python docs/generate.py [--check]
"""

import os

os.environ.update(TERMINAL_WIDTH="96", COLUMNS="96", NO_COLOR="1", TERM="dumb")  # read when typer is imported

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import click
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from saccade.cli import app
from saccade.config import kinds, schema
from saccade.config.descriptions import format_default, format_type, get_descriptions, get_only_kind
from saccade.config.load import list_recipes, load, read_paper_form
from saccade.config.table import ObjectiveTraits, WriterTraits
from saccade.config.task import Task
from saccade.lectures.listing import list_claims
from saccade.lectures.sources import load_notes, parse_sources
from saccade.plan.counts import build_on_meta, count_parameters
from saccade_worlds import KINDS

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from report import publish

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by docs/generate.py; change the source, then run `make docs`. -->"


def main() -> int:
    docs = ROOT / "docs"
    written = {
        path: with_notes(with_code(path.read_text("utf-8")))
        for path in [ROOT / "README.md", *sorted(docs.glob("*.md"))]
    }
    pages = {**written, docs / "cli.md": verbs(), docs / "configuration.md": configuration()}
    pages[docs / "papers.md"] = papers()
    return publish(pages, about=__doc__, root=ROOT)


# ---- lecture notes

NOTES = re.compile(r"(<!-- notes -->\n).*?(?=<!-- end of notes -->)", re.DOTALL)


def with_notes(page: str) -> str:
    """The page with the table of lecture notes: which topic stands on which lines, and which rows are about it."""
    return NOTES.sub(lambda found: f"{found[1]}{notes_table()}\n", page)


def notes_table() -> str:
    lines = ["| lines | topic | rows |", "|---|---|---|"]
    for code, notes in load_notes().items():
        by = f", {notes.by}" if notes.by else ""
        lines.append(f"| **{code}** | **{notes.title}**{by}; {notes.kind} | |")
        rows = [(source, claim) for claim in list_claims() for source in parse_sources(claim.where)]
        here = sorted((source.first_line, source.lines, claim) for source, claim in rows if source.notes == notes)
        for topic, group in groupby(here, key=lambda item: item[2].topic):
            items = list(group)
            last = max(int(number) for _, where, _ in items for number in re.findall(r"\d+", where))
            numbers = ", ".join(
                str(claim.row) for claim in sorted({item[2] for item in items}, key=lambda one: one.row)
            )
            first = items[0][0]
            lines.append(f"| {code}:{first if first == last else f'{first}-{last}'} | {topic} | {numbers} |")
    return "\n".join(lines)


# ---- code

MARK = re.compile(r"(<!-- (code|head): (\S+) (\S+) -->\n)(?:```python\n.*?\n```\n)?", re.DOTALL)


def with_code(page: str) -> str:
    """The page with each piece of code that it shows as it is now."""
    return MARK.sub(lambda found: f"{found[1]}```python\n{source(found[2], found[3], found[4])}\n```\n", page)


def source(how: str, file: str, name: str) -> str:
    """A function or class of a file, whole, or only what it is called with and its docstring."""
    text = (ROOT / file).read_text("utf-8")
    node: Any = ast.parse(text)
    for part in name.split("."):
        node = next((inner for inner in node.body if getattr(inner, "name", "") == part), None)
        if node is None:
            raise SystemExit(f"{file} has no {name}")
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    last = node.body[0].end_lineno if how == "head" else node.end_lineno  # the docstring comes first
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : last]))


# ---- the verbs


def verbs() -> str:
    """One section for each verb, in the order of `saccade --help`."""
    sections = [
        f"# The command line\n\n{NOTE}\n",
        "All commands with their options, as `--help` prints them. Results go to stdout, progress to stderr; `-` is "
        "stdin. A user's mistake gives one message and exit code 2.\n",
    ]
    for words in commands(typer.main.get_command(app), ()):
        done = CliRunner().invoke(app, [*words, "--help"], prog_name="saccade", color=False)
        if done.exit_code:
            raise SystemExit(f"saccade {' '.join(words)} --help failed: {done.output}")
        text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
        sections.append(f"## saccade {' '.join(words)}".rstrip() + f"\n\n```text\n{text}\n```\n")
    return "\n".join(sections)


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():  # groups of typer are no click.Group in every version
        yield from commands(inner, (*words, name))


# ---- the papers


def papers() -> str:
    """The form [paper] of every recipe that has one, with its number of parameters beside that of the paper."""
    intro = (
        "Recipes have sizes for data that one has at hand. `--paper` takes those of the paper instead, with its "
        "training settings as far as saccade has them:\n\n"
        "```console\n$ saccade plan gnmt --paper            # parameters, memory, time, cost\n```\n\n"
        "*Our choice* are settings that the paper does not give, or not for what saccade has: with another optimizer, "
        "for example, learning rates mean something else. All others are the paper's. *Read in* is what they were "
        "compared with: a part of the paper, or, where it says so, a summary of it or code; where it is empty, they "
        "were written down from memory.\n\n"
        "`saccade train NAME --paper --data ...` trains such a model. Parameters here are counted by building each "
        "model on torch's meta device. We trained none of these to its end; [Results](results.md) has what we did.\n"
    )
    columns = "| recipe | parameters | in the paper | our choice | read in | what differs |"
    rows = [columns, "|---|---:|---:|---|---|---|"]
    for name in list_recipes():
        form = read_paper_form(name)
        if form is not None:
            count = count_parameters(build_on_meta(load(name, paper=True)))
            stated = "not stated" if form.parameters is None else f"{form.parameters:,.0f}"
            ours = ", ".join(f"`{key}`" for key in form.ours)
            rows.append(f"| `{name}` | {count:,} | {stated} | {ours} | {form.read_in} | {form.difference} |")
    return "\n".join([f"# Sizes of the papers\n\n{NOTE}\n\n{intro}", *rows, "", WITHOUT_PAPER]) + "\n"


WITHOUT_PAPER = (
    "The other recipes have sizes of our own, for data or tasks that are in no paper: `classify`, `dates`, `multi30k`, "
    "`probe`, `shakespeare`, `show-attend-tell-transformer`, `small-data`, `tag` and `tatoeba`."
)


# ---- the schema


def configuration() -> str:
    """One section for each table of a recipe, with the descriptions of its keys."""
    intro = (
        "Every key of a recipe, its type and its default. Numbers here are the defaults of the command line and of "
        "Python alike. `saccade recipes show transformer` prints a whole recipe; [Recipes](recipes.md) explains them.\n"
    )
    return "\n".join(
        [
            f"# All settings\n\n{NOTE}\n\n{intro}",
            *(table(model, paths) for model, paths in places(schema.Recipe).items()),
            *(table(model, paths) for model, paths in plugin_places().items()),
        ]
    )


def plugin_places() -> dict[type[BaseModel], list[str]]:
    """The tables of the plugin that comes with saccade, which recipes of its tasks may have."""
    found: dict[type[BaseModel], list[str]] = {}
    for kind in KINDS.values():
        if isinstance(kind, Task) and kind.data_table is not None:
            inner = places(kind.data_table, "data")
            found |= {model: paths for model, paths in inner.items() if model is not schema.Corpus}
        elif isinstance(kind, type) and issubclass(kind, WriterTraits):
            found[kind] = ["writer"]
        elif isinstance(kind, type) and issubclass(kind, ObjectiveTraits):
            found[kind] = ["objectives"]
    return found


# Readers in a joined reader have the tables of readers, and what joins them has a stack as they do: that is said once.
INNER = re.compile(r"^reader\.(image|question|join)")


def places(model: type[BaseModel], path: str = "") -> dict[type[BaseModel], list[str]]:
    """Every table with the places of a recipe where it may stand."""
    found = {model: [path]}
    for name, field in model.model_fields.items():
        for inner in models(field.annotation):
            for table, paths in places(inner, f"{path}.{name}".strip(".")).items():
                here = found.setdefault(table, [])
                here.extend(place for place in paths if place not in here)
    return found


def join_names(names: list[str]) -> str:
    """`a, b and c`."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def table(model: type[BaseModel], paths: list[str]) -> str:
    """What a table is, and one row for each of its keys that is not a table itself."""
    kind = get_only_kind(model)
    task = next((one.name for one in KINDS.values() if isinstance(one, Task) and one.data_table is model), "")
    shown = [path for path in paths if INNER.sub("reader", path, count=1) not in {*paths} - {path}]
    heading = join_names([f"`[{path}]`" for path in shown]) if paths != [""] else "The top of a recipe"
    about = inspect.getdoc(model) if model.__doc__ else ""
    descriptions = {name: escape(text) for name, text in get_descriptions(model).items()}
    rows = [
        f"| `{name}` | {type_name(field)} | {default(field)} | {descriptions[name]} |"
        for name, field in model.model_fields.items()
        if not models(field.annotation) and name != "schema_version" and not (name == "kind" and kind)
        if not (task and name not in inspect.get_annotations(model))  # the others are those of every task
    ]
    parts = [f'## {heading}, kind = "{kind}"' if kind else f"## {heading}" + (f', task = "{task}"' if task else "")]
    parts += [about] if about else []
    parts += ["\n".join(["| key | type | default | description |", "|---|---|---|---|", *rows])] if rows else []
    return "\n\n".join(parts) + "\n"


def models(annotation: Any) -> list[type[BaseModel]]:
    """The tables that may stand at this place."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if annotation is kinds.Custom else [annotation]
    return [model for part in get_args(annotation) for model in models(part)]


def escape(text: str) -> str:
    """A description as a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def type_name(field: FieldInfo) -> str:
    """`number >= 0`, `"post"` or `"pre"`: a type in the words of a recipe, quoted values as code."""
    names = [kind.name for kind in KINDS.values() if isinstance(kind, Task)] if field.annotation is Task else []
    text = " or ".join([format_type(field.annotation, field.metadata), *(f'"{name}"' for name in names)])
    return re.sub(r'"[^"]*"', r"`\g<0>`", text)


def default(field: FieldInfo) -> str:
    text = format_default(field)
    return text if text == "required" else f"`{text}`"


if __name__ == "__main__":
    sys.exit(main())
