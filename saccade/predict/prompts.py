"""Prompts from a template: solved examples one behind the other, then a task whose answer is left open.

"Poor English: {poor}\\nGood English: {good}" is filled from an example with both, and from a task up to its last field,
the answer. So the examples tell a model what is wanted of it (Brown et al. 2020), and nothing is trained.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any

from saccade.data.sources import table
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError

FIELD = re.compile(r"[^\W\d]\w*")
SHAPE = "'Question: {question}\\nAnswer: {answer}'"
ESCAPES = {"\\n": "\n", "\\t": "\t"}


@dataclass(frozen=True)
class Task:
    """One row of a file: where it stands, and its fields."""

    place: str  # for messages
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Template:
    """Pieces of text, each followed by a field; the last field is the answer, and `after` what stands behind it."""

    parts: tuple[tuple[str, str], ...]
    after: str

    @property
    def answer(self) -> str:
        return self.parts[-1][1]

    @property
    def given(self) -> list[str]:
        """The fields that a task must have."""
        return list(dict.fromkeys(name for _, name in self.parts[:-1]))

    @property
    def gap(self) -> str:
        """Spaces before the answer; the model writes them, as they belong to its first word."""
        text = self.parts[-1][0]
        return text[len(text.rstrip(" ")) :]

    def example(self, task: Task) -> str:
        """A solved one."""
        return "".join(text + filled(task, name) for text, name in self.parts) + self.after

    def prompt(self, task: Task, examples: str = "") -> str:
        """The examples, as one text, and a task up to its answer."""
        open_end = self.parts[-1][0].removesuffix(self.gap) if self.gap else self.parts[-1][0]
        return examples + "".join(text + filled(task, name) for text, name in self.parts[:-1]) + open_end


def filled(task: Task, name: str) -> str:
    """The text of a field."""
    if name not in task.fields:
        known = ", ".join(task.fields)
        raise SaccadeError(
            f"{task.place}: the template asks for {{{name}}}{did_you_mean(name, task.fields)} (fields: {known})"
        )
    value = task.fields[name]
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SaccadeError(f"{task.place}: expected text in field {name!r}, got {type(value).__name__}")
    return str(value)


def parse(given: str) -> Template:
    """A template, or that of a file; \\n and \\t stand for a line end and a tab, {{ and }} for braces."""
    text = given
    if "{" not in given:
        if not isfile(given):  # a template without a field may be longer than the name of a file can be
            raise SaccadeError(
                f"the template {given!r} has no field, and there is no file of that name; expected one as {SHAPE}"
            )
        try:
            text = Path(given).read_text(encoding="utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise SaccadeError(f"the template {given} is not UTF-8 text ({error}); save it as UTF-8") from None
    for written, meant in ESCAPES.items():
        text = text.replace(written, meant)
    try:
        found = list(string.Formatter().parse(text))
    except ValueError as error:
        raise SaccadeError(f"the template cannot be read ({error}); write {{{{ and }}}} for braces") from None
    parts, after = _parts(found)
    names = [name for _, name in parts]
    if len(set(names)) < 2 or names[-1] in names[:-1]:
        raise SaccadeError(
            f"a template has a field for what is given, and the answer as its last one, as {SHAPE}; "
            f"got {', '.join(f'{{{name}}}' for name in names) or 'none'}"
        )
    return Template(tuple(parts), after if after.endswith("\n") else after + "\n")


def _parts(found: Sequence[tuple[str, str | None, str | None, str | None]]) -> tuple[list[tuple[str, str]], str]:
    """Text and field in turn, and the text at the end."""
    parts: list[tuple[str, str]] = []
    before = ""
    for text, name, form, conversion in found:
        before += text
        if name is None:
            continue
        if not FIELD.fullmatch(name) or form or conversion:
            raise SaccadeError(f"fields of a template are plain names, as {{question}}, got {{{name}{form or ''}}}")
        parts.append((before, name))
        before = ""
    return parts, before


def read_tasks(path: str) -> Iterator[Task]:
    """The rows of a file with columns: .jsonl, .csv, .tsv or .parquet."""
    if not table.kind(Path(path)):
        raise SaccadeError(f"{path} has no fields for a template; expected a file that ends with {one_of(table.KINDS)}")
    for number, record in table.records(Path(path), is_header=lambda cells: True):
        yield Task(f"{path}:{number}", record)


def examples_text(template: Template, path: str | None) -> str:
    """All examples of a file, solved."""
    return "" if path is None else "".join(map(template.example, read_tasks(path)))


def typed(template: Template, text: str) -> Task:
    """A text that was given alone is the one field that a task has."""
    if len(template.given) > 1:
        raise SaccadeError(
            f"the template has the fields {', '.join(template.given)}, so that one text is not enough; "
            "give tasks as rows with these fields: --input TASKS.jsonl"
        )
    return Task("the text", {template.given[0]: text})


def one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
