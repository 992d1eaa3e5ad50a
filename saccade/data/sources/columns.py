"""Recognize columns by their names; say which have to be named, and the option that names them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from saccade.errors import SaccadeError

INDEX_COLUMNS = ("idx", "index", "id")  # columns of row numbers
UNNAMED_COLUMNS = ("", "unnamed: 0", "__index_level_0__")  # of pandas, and those that spreadsheets leave empty
ALIASES = {"source": ("source", "src"), "target": ("target", "tgt", "trg"), "text": ("text",)}
LABEL_ALIASES = ("label", "labels", "class", "category", "sentiment", "rating", "stars")
USUAL_NAMES = """
    source target src tgt trg input output text label sentence translation original question answer
    arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian indonesian italian
    japanese korean norwegian persian polish portuguese romanian russian spanish swedish turkish ukrainian vietnamese
    deutsch englisch français español ar cs da de el en es fa fi fr he hi hu id it ja ko nl no pl pt ro ru sv tr uk vi
    zh"""  # of columns of pairs
MAX_NAME_CHARACTERS, MAX_NAME_WORDS = 40, 4  # of the name of a column; longer cells are texts
SIMPLE_NAME = re.compile(r"[\w.-]+")
SENTENCE_END = re.compile(r".*\w\s*[.!?…。！？]", re.DOTALL)


class UnclearColumnsError(SaccadeError):
    """Which columns of a corpus are meant is not clear; `example` are columns that could be."""

    def __init__(self, before: str, example: Sequence[str], after: str = "") -> None:
        self.before, self.after, self.example = before, after, list(example)
        super().__init__(f"{before} columns = {json.dumps(self.example, ensure_ascii=False)} in a recipe{after}")

    def with_option(self, key: str) -> SaccadeError:
        """Return the error with the option of the command line that names the columns of the corpus `key`."""
        return SaccadeError(f"{self.before} {key}.columns={format_columns(self.example)}{self.after}")

    def for_scoring(self) -> SaccadeError:
        """Return the error with the option of `saccade evaluate` and `compare` that names the columns."""
        return SaccadeError(f"{self.before} --columns {format_columns(self.example)}{self.after}")


def format_columns(names: Sequence[str]) -> str:
    """Columns as a shell takes them: 'German,English', or a list with quotes where a name has spaces or the like."""
    if all(map(SIMPLE_NAME.fullmatch, names)):
        return f"'{','.join(names)}'"
    return shlex.quote(json.dumps(list(names), ensure_ascii=False))


def is_index(name: str) -> bool:
    """Whether a column has row numbers, by its name."""
    return name.strip().lower() in (*INDEX_COLUMNS, *UNNAMED_COLUMNS)


def list_named(available: Sequence[str]) -> list[str]:
    """Return the columns that have names."""
    return [name for name in available if name.strip().lower() not in UNNAMED_COLUMNS]


def find_by_alias(names: Sequence[str], available: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns with these names, or with other spellings of them; None unless each is there once."""
    if all(name in available for name in names):
        return tuple(names)
    found = [[one for one in available if one.strip().lower() in ALIASES[name]] for name in names]
    return tuple(one for [one] in found) if all(len(one) == 1 for one in found) else None


def resembles_text(name: str) -> bool:
    """Whether the name of a column is rather a text: the header is missing then."""
    return len(name) > MAX_NAME_CHARACTERS or len(name.split()) >= MAX_NAME_WORDS or bool(SENTENCE_END.fullmatch(name))


def resembles_header(cells: Sequence[str]) -> bool:
    """Whether a line that is read as an example has names of columns alone."""
    return len(cells) > 1 and all(cell.strip().lower() in USUAL_NAMES.split() for cell in cells)


def suggest_columns(candidates: Sequence[str], available: Sequence[str], count: int) -> list[str]:
    """Return the first `count` candidates that are no row numbers; of all columns if these are too few."""
    likely = [name for name in candidates if not is_index(name)]
    return (likely if len(likely) >= count else list(available))[:count]


def suggest_by_length(cells: Mapping[str, str], count: int) -> list[str]:
    """Return the `count` columns with the longest cells, which are probably the texts, in their order."""
    likely = sorted((name for name in cells if not is_index(name)), key=lambda name: -len(cells[name]))[:count]
    return [name for name in cells if name in likely]
