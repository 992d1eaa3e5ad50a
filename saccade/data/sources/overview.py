"""Say what is read from the files of a recipe, before it is read: which column is what, and the first examples."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from saccade.data.sources import media
from saccade.data.sources.columns import UnclearColumnsError
from saccade.data.sources.corpus import CorpusSplit
from saccade.data.sources.pairs import EMBEDDED_PREFIX
from saccade.data.store.arrays import Store

NUM_EXAMPLES = 3
MAX_CELL_CHARACTERS = 60  # of each cell of an example
MAX_LABELS = 10  # whose numbers are shown
FRACTION = re.compile(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", re.IGNORECASE)
REGRESSION = "writer.kind=number objectives.0.kind=regress train.metric=pearson"  # as overrides
MAX_CORPORA = 5  # that are described


def describe_corpora(splits: Sequence[CorpusSplit], *, title: str, key: str) -> list[str]:
    """Return a line for each corpus of files, with its columns, and a line for each of its first examples.

    `key` is the key of the corpora in a recipe, "data.train". Embedded data has no columns that could be wrong.
    """
    lines, count = list[str](), 0
    for index, split in enumerate(splits):
        if split.name.startswith(EMBEDDED_PREFIX):
            continue
        try:
            columns = split.find_columns()
        except UnclearColumnsError as error:
            raise error.with_option(f"{key}.{index}") from None
        count += 1
        if count <= MAX_CORPORA:
            lines += _describe_corpus(split, columns, title)
    return [*lines, f"and {count - MAX_CORPORA:,} more"] if count > MAX_CORPORA else lines


def format_columns_read(splits: Sequence[CorpusSplit], *, title: str = "data") -> list[str]:
    """Return a line for each corpus that is a table, with the columns that are read."""
    found = [(split, split.find_columns()) for split in splits if not split.name.startswith(EMBEDDED_PREFIX)]
    return [
        f"{title} {' and '.join(split.corpus.files)}{_format_columns(split, names)}" for split, names in found if names
    ]


def format_sizes(store: Store, splits: Sequence[CorpusSplit], *, title: str) -> list[str]:
    """Return a line with the number of rows of each corpus, without those that were dropped."""
    if all(split.name.startswith(EMBEDDED_PREFIX) for split in splits):
        return []
    noun = splits[0].get_row_noun(store.sides)
    sizes = [
        f"{size:,} {noun}{'s' * (size != 1)} of {split.name}"
        for size, split in zip(store.corpus_sizes, splits, strict=True)
    ]
    more = [f"{sum(store.corpus_sizes[MAX_CORPORA:]):,} of others"] if len(sizes) > MAX_CORPORA else []
    return [f"{title}: {', '.join([*sizes[:MAX_CORPORA], *more])}"]


def describe_labels(splits: Sequence[CorpusSplit], counts: Mapping[str, int]) -> list[str]:
    """Return a line with the labels and how often each occurs, the most frequent ones first."""
    if not counts or all(split.name.startswith(EMBEDDED_PREFIX) for split in splits):
        return []
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{_shorten(label)} ({count:,})" for label, count in ordered[:MAX_LABELS])
    more = f", and {len(ordered) - MAX_LABELS:,} others" if len(ordered) > MAX_LABELS else ""
    lines = [f"labels: {shown}{more}"]
    if any("." in label for label in counts) and all(map(FRACTION.fullmatch, counts)):
        lines.append(f"  each of these numbers is learned as a class; to learn them as numbers: {REGRESSION}")
    return lines


def _describe_corpus(split: CorpusSplit, columns: Sequence[str], title: str) -> list[str]:
    examples = list(islice(split.iter_rows(), NUM_EXAMPLES))
    cells = split.name_cells(len(examples[0]) - 1) if examples else ()
    files = split.corpus.files
    if columns:
        read = _format_columns(split, columns)
    elif len(files) == len(cells) == 2 and split.media_reader is None:
        read = f": {', '.join(f'{cell} = {file}' for cell, file in zip(cells, files, strict=True))}"
    else:
        read = f": {', '.join(cells)}" if cells else ""
    shown = [f"  {number}: {' | '.join(_format_cells(split, row))}" for number, *row in examples]
    return [f"{title} {' and '.join(files)}{read}", *shown, *_describe_foreign_files(split)]


def _format_columns(split: CorpusSplit, columns: Sequence[str]) -> str:
    names = [column if column.isdecimal() else json.dumps(column, ensure_ascii=False) for column in columns]
    cells = split.name_cells(len(columns))
    return f": {', '.join(f'{cell} = column {name}' for cell, name in zip(cells, names, strict=False))}"


def _describe_foreign_files(split: CorpusSplit) -> list[str]:
    """Return a line about files in a folder of pictures or sound whose format is not read; none if there are none."""
    if split.media_reader is None or not Path(split.name).is_dir():
        return []
    counts = media.count_foreign_files(Path(split.name), split.media_reader.medium)
    found = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(counts.items()))
    return [f"  files that are not read, and left out: {found}; convert them"] if found else []


def _format_cells(split: CorpusSplit, row: Sequence[str]) -> list[str]:
    if split.media_reader is not None:
        row = [_name_in_folder(Path(row[0]), Path(split.name)), *row[1:]]
    return [_shorten(cell) for cell in row]


def _name_in_folder(path: Path, folder: Path) -> str:
    """The path of a file below the folder of its corpus, which shows of which subfolder its label is the name."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def _shorten(text: str) -> str:
    """Return the beginning of a text as one line, without characters that a terminal would interpret."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_CELL_CHARACTERS]).split())
    return line if len(line) <= MAX_CELL_CHARACTERS else f"{line[:MAX_CELL_CHARACTERS]}..."
