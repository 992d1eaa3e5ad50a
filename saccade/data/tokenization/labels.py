"""Labels of texts: a class, a class for each word, or a number; and their ids in batches.

In a batch, class c is the id c + 1, and 0 means no class; a number is stored as the 32 bits of a float.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.parsing import read_json_object

LABELS_FILE = "labels.json"  # in the folder of a run
MAX_CLASSES = 1_000  # more distinct values suggest that the column does not hold labels
MAX_CLASS_SHARE = 0.5  # of the number of texts: then nearly each has a label of its own, as a text has
MIN_CLASSES = 20  # fewer may be that many of few texts
NO_CLASS = 0  # id of positions without a class
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")  # without leading zeros, which codes have
MAX_NUMBER = 3e38  # float32 has no larger ones


class LabelKind(NamedTuple):
    """Properties of a kind of labels; by default a class of the whole text."""

    is_number: bool = False
    per_word: bool = False


LABEL_KINDS = {
    "number": LabelKind(is_number=True),
    "tags": LabelKind(per_word=True),
}  # others are classes of whole texts


@dataclass(frozen=True)
class Labels:
    """The kind of the labels, which is the kind of writer (label, number, tags), and the names of the classes."""

    kind: str
    names: tuple[str, ...] = ()
    num_texts: int = 1  # texts that one label is about: one or two

    @property
    def is_number(self) -> bool:
        """Whether labels are numbers (regression)."""
        return LABEL_KINDS.get(self.kind, LabelKind()).is_number

    @property
    def per_word(self) -> bool:
        """Whether each word has a class (tagging)."""
        return LABEL_KINDS.get(self.kind, LabelKind()).per_word

    @property
    def size(self) -> int:
        """Number of outputs of a writer for each text or word."""
        return len(self.names) or 1

    def has_same_kind(self, other: Labels) -> bool:
        """Whether both have the same kind."""
        return self.kind == other.kind

    def encode(self, label: str) -> list[int]:
        """Return the ids of a label: one for a text, one for each word with tags."""
        if self.is_number:
            return [struct.unpack("<I", struct.pack("<f", parse_number(label)))[0]]
        return [self._get_id(name) for name in (label.split() if self.per_word else [label])]

    def encode_all(self, labels: Sequence[str]) -> list[list[int]]:
        return [self.encode(label) for label in labels]

    def can_encode(self, label: str) -> bool:
        return label in self.names

    def _get_id(self, name: str) -> int:
        if name not in self.names:
            shown = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
            raise SaccadeError(
                f"unknown label {name!r}{did_you_mean(name, self.names)} (in the training data: {shown})"
            )
        return self.names.index(name) + 1

    def fingerprint(self) -> str:
        """Hash everything that the ids depend on."""
        return sha256(json.dumps([self.kind, self.names]).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(
            {"kind": self.kind, "names": self.names, "texts": self.num_texts}, ensure_ascii=False, indent=1
        )

    def save(self, folder: Path) -> None:
        atomic_write(folder / LABELS_FILE, self.to_json().encode())

    @staticmethod
    def load(folder: Path) -> Labels | None:
        """Load the labels of a run; None if it has none."""
        path = folder / LABELS_FILE
        if not path.is_file():
            return None
        try:
            values = read_json_object(path)
            return Labels(str(values["kind"]), tuple(map(str, values["names"])), int(values["texts"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SaccadeError(f"{path} is not a file of labels ({error}); restore it or train again") from None


def collect_labels(kind: str, rows: Iterable[Sequence[Any]], *, noun: str = "texts") -> Labels:
    """Collect the classes in the last cell of rows, sorted by name, or by value if all of them are integers.

    The first cell is the number of the row; the cells between are the texts that the label is about. `noun` is what
    messages call these.
    """
    found: set[str] = set()
    num_texts, num_rows = 1, 0
    for _, *texts, label in rows:
        num_texts, num_rows = len(texts), num_rows + 1
        if kind == "number":
            break
        found.update(label.split() if kind == "tags" else [label] if label.strip() else [])
        if len(found) > MAX_CLASSES:
            raise SaccadeError(
                f"there are more than {MAX_CLASSES:,} different labels, such as {sorted(found)[0]!r}; is it the right "
                'column? numbers are learned with writer.kind = "number"'
            )
    if kind == "number":
        return Labels(kind, num_texts=num_texts)
    if kind == "label" and noun == "texts" and len(found) > max(MIN_CLASSES, num_rows * MAX_CLASS_SHARE):
        raise SaccadeError(
            f"there are {len(found):,} different labels for {num_rows:,} texts, such as {sorted(found)[0][:60]!r}; is "
            "it the right column? data.train.0.columns names the columns of the texts and, last, of the label"
        )
    if kind == "label":
        check_spelling(found)
    if len(found) < 2:
        only = f"only one: {min(found)!r}" if found else "none"
        raise SaccadeError(f"at least two different labels are needed to tell {noun} apart, but the data has {only}")
    numeric = all(name.removeprefix("-").isdecimal() for name in found)
    return Labels(kind, tuple(sorted(found, key=lambda name: (int(name) if numeric else 0, name))), num_texts)


def check_spelling(names: Iterable[str]) -> None:
    """Raise if two labels are the same number, such as 1 and 1.0, which different programs write."""
    seen: dict[float, str] = {}
    for name in sorted(names):
        if NUMBER.fullmatch(name) and (other := seen.setdefault(float(name), name)) != name:
            raise SaccadeError(f"the labels {other!r} and {name!r} are the same number; write it in one way")


def parse_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= MAX_NUMBER:
        raise SaccadeError(f'expected a number, got {text!r}; classes are learned with writer.kind = "label"')
    return value
