"""Few-shot prompts from a template: solved examples one after the other, then a task without its answer.

"Poor English: {poor}\\nGood English: {good}" is filled from an example with both fields, and from a task up to its last
field, the answer. The model infers the task from the examples, without training (Brown et al. 2020).
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
EXAMPLE_TEMPLATE = "'Question: {question}\\nAnswer: {answer}'"
ESCAPES = {"\\n": "\n", "\\t": "\t"}


@dataclass(frozen=True)
class PromptTask:
    """One row of a file: its location, for messages, and its fields."""

    location: str  # file and line, for messages
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Template:
    """Pairs of literal text and the field after it. The last field is the answer; `after` is the text behind it."""

    parts: tuple[tuple[str, str], ...]
    after: str

    @property
    def answer(self) -> str:
        return self.parts[-1][1]

    @property
    def input_fields(self) -> list[str]:
        """Fields that a task must have: all but the answer."""
        return list(dict.fromkeys(name for _, name in self.parts[:-1]))

    @property
    def answer_spaces(self) -> str:
        """Spaces before the answer: no part of the prompt, because the answer's first token includes them."""
        text = self.parts[-1][0]
        return text[len(text.rstrip(" ")) :]

    def format_example(self, task: PromptTask) -> str:
        """Fill all fields, the answer included."""
        return "".join(text + get_field_text(task, name) for text, name in self.parts) + self.after

    def format_prompt(self, task: PromptTask, examples: str = "") -> str:
        """Return the formatted examples followed by the task up to its answer."""
        open_end = self.parts[-1][0].removesuffix(self.answer_spaces) if self.answer_spaces else self.parts[-1][0]
        return examples + "".join(text + get_field_text(task, name) for text, name in self.parts[:-1]) + open_end


def get_field_text(task: PromptTask, name: str) -> str:
    """Return a field of a task as text."""
    if name not in task.fields:
        known = ", ".join(task.fields)
        raise SaccadeError(
            f"{task.location}: the template asks for {{{name}}}{did_you_mean(name, task.fields)} (fields: {known})"
        )
    value = task.fields[name]
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SaccadeError(f"{task.location}: expected text in field {name!r}, got {type(value).__name__}")
    return str(value)


def parse_template(given: str) -> Template:
    """Parse a template, or the file that it names. `\\n` and `\\t` are line feed and tab, `{{` and `}}` braces."""
    text = given
    if "{" not in given:
        if not isfile(given):  # isfile, not Path.is_file: text may be longer than a file name can be
            raise SaccadeError(
                f"the template {given!r} has no field, and there is no file of that name; "
                f"expected one as {EXAMPLE_TEMPLATE}"
            )
        try:
            text = Path(given).read_text(encoding="utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise SaccadeError(f"the template {given} is not UTF-8 text ({error}); save it as UTF-8") from None
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        raise SaccadeError(f"the template cannot be read ({error}); write {{{{ and }}}} for braces") from None
    parts, after = _split_fields(fields)
    names = [name for _, name in parts]
    if len(set(names)) < 2 or names[-1] in names[:-1]:
        raise SaccadeError(
            f"a template has a field for what is given, and the answer as its last one, as {EXAMPLE_TEMPLATE}; "
            f"got {', '.join(f'{{{name}}}' for name in names) or 'none'}"
        )
    return Template(tuple(parts), after if after.endswith("\n") else after + "\n")


def _split_fields(
    fields: Sequence[tuple[str, str | None, str | None, str | None]],
) -> tuple[list[tuple[str, str]], str]:
    """Split parsed format fields into pairs of text and field name, and the text after the last field."""
    parts: list[tuple[str, str]] = []
    before = ""
    for text, name, form, conversion in fields:
        before += text
        if name is None:
            continue
        if not FIELD.fullmatch(name) or form or conversion:
            raise SaccadeError(f"fields of a template are plain names, as {{question}}, got {{{name}{form or ''}}}")
        parts.append((before, name))
        before = ""
    return parts, before


def read_tasks(path: str) -> Iterator[PromptTask]:
    """Read the rows of a file with columns: .jsonl, .csv, .tsv or .parquet."""
    if not table.get_format(Path(path)):
        raise SaccadeError(
            f"{path} has no fields for a template; "
            f"expected a file that ends with {join_alternatives(table.TABLE_SUFFIXES)}"
        )
    for number, record in table.read_records(Path(path), is_header=lambda cells: True):
        yield PromptTask(f"{path}:{number}", record)


def format_examples(template: Template, path: str | None) -> str:
    """Format all examples of a file; an empty string without a file."""
    return "" if path is None else "".join(map(template.format_example, read_tasks(path)))


def build_task(template: Template, text: str) -> PromptTask:
    """Build a task from a single text, for a template with one input field."""
    if len(template.input_fields) > 1:
        raise SaccadeError(
            f"the template has the fields {', '.join(template.input_fields)}, so that one text is not enough; "
            "give tasks as rows with these fields: --input TASKS.jsonl"
        )
    return PromptTask("the text", {template.input_fields[0]: text})


def join_alternatives(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
