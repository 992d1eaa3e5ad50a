"""The sets of lecture notes, and the places in them where each claim stands."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from saccade.lectures.tables import read_table

SOURCE = re.compile(r"(S\d):(.*?)(?=, S\d:|$)")  # of a text such as "S1:24-29, S4:28-33"


class Notes(NamedTuple):
    """A set of lecture notes."""

    code: str  # short name, such as S3
    title: str
    by: str  # course, author, institution; empty if the notes do not say
    kind: str

    @property
    def full_title(self) -> str:
        return f"{self.title} ({self.by})" if self.by else self.title


class Source(NamedTuple):
    """Lines of a set of notes."""

    notes: Notes
    lines: str  # such as "24-29" or "24,100"

    @property
    def code(self) -> str:
        return f"{self.notes.code}:{self.lines}"

    @property
    def first_line(self) -> int:
        return int(re.split("[,-]|[ ]", self.lines)[0])

    def __str__(self) -> str:
        noun = "line" if self.lines.isdigit() else "lines"
        return f"{self.notes.full_title}, {noun} {self.lines.replace(',', ', ')}"

    def as_dict(self) -> dict[str, str]:
        """Return the source for JSON."""
        return {"notes": self.notes.full_title, "code": self.notes.code, "lines": self.lines}


@cache
def load_notes() -> dict[str, Notes]:
    """Return the sets of notes by their short names."""
    return {code: Notes(code, **item) for code, item in read_table("rows.toml")["notes"].items()}


def parse_sources(where: str) -> list[Source]:
    """Parse places such as "S1:24-29, S4:28-33"."""
    return [Source(load_notes()[code], lines) for code, lines in SOURCE.findall(where)]


def format_legend() -> str:
    """Format the short name, title and kind of every set of notes."""
    return "\n".join(f"{code}  {notes.full_title}; {notes.kind}" for code, notes in load_notes().items())
