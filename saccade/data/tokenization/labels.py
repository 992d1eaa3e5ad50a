"""What texts are labelled with: a class, a class for each word, or a number; and how batches hold it.

In a batch, class c is the id c + 1, and 0 stands where there is none; a number is the 32 bits of a float.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError
from saccade.files import atomic_write

FILE = "labels.json"  # of a run
MOST = 1_000  # classes; a column with more is no column of labels
NONE = 0  # the id where there is no class
LARGEST = 3e38  # of numbers: more does not fit into 32 bits


class Kind(NamedTuple):
    """What labels of a kind are; a class for the whole text, where nothing else is said."""

    is_number: bool = False
    per_word: bool = False


KINDS = {"number": Kind(is_number=True), "tags": Kind(per_word=True)}  # all others are classes of whole texts


@dataclass(frozen=True)
class Labels:
    """Of which kind they are, by the kind of writer (label, number, tags), and the classes by their names."""

    kind: str
    names: tuple[str, ...] = ()
    texts: int = 1  # that one label is about: one, or a pair

    @property
    def is_number(self) -> bool:
        """Whether a label is a number; otherwise it is one class, or one for each word."""
        return KINDS.get(self.kind, Kind()).is_number

    @property
    def per_word(self) -> bool:
        """Whether each word has a class of its own."""
        return KINDS.get(self.kind, Kind()).per_word

    @property
    def size(self) -> int:
        """How many numbers a writer gives for each text or word."""
        return len(self.names) or 1

    def is_like(self, other: Labels) -> bool:
        """Whether both are of the same kind."""
        return self.kind == other.kind

    def encode(self, label: str) -> list[int]:
        """The ids of a label: of a text one, of tags one for each word."""
        if self.is_number:
            return [struct.unpack("<I", struct.pack("<f", number_in(label)))[0]]
        return [self._known(name) for name in (label.split() if self.per_word else [label])]

    def encode_all(self, labels: Sequence[str]) -> list[list[int]]:
        return [self.encode(label) for label in labels]

    def knows(self, label: str) -> bool:
        return label in self.names

    def _known(self, name: str) -> int:
        if name not in self.names:
            shown = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
            raise SaccadeError(
                f"unknown label {name!r}{did_you_mean(name, self.names)} (in the training data: {shown})"
            )
        return self.names.index(name) + 1

    def fingerprint(self) -> str:
        """A hash of everything that decides the ids."""
        return sha256(json.dumps([self.kind, self.names]).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    def save(self, folder: Path) -> None:
        atomic_write(folder / FILE, self.to_json().encode())

    @staticmethod
    def load(folder: Path) -> Labels | None:
        """Those of a run; none where it has none."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return Labels(str(values["kind"]), tuple(map(str, values["names"])), int(values["texts"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SaccadeError(f"{path} is no file of labels ({error}); restore it or train again") from None


def learn_labels(kind: str, rows: Iterable[Sequence[Any]], *, labelled: str = "texts") -> Labels:
    """What the last cell of rows is: the classes that occur, in the order of their names, numbers in their own order.

    The first cell is the number of the row; what stands between is what the label is about. `labelled` is what has a
    label, for messages.
    """
    found: set[str] = set()
    texts = 1
    for _, *about, label in rows:
        texts = len(about)
        if kind == "number":
            break
        found.update(label.split() if kind == "tags" else [label] if label.strip() else [])
        if len(found) > MOST:
            raise SaccadeError(
                f"there are more than {MOST:,} different labels, such as {sorted(found)[0]!r}; is it the right column? "
                'numbers are learned with writer.kind = "number"'
            )
    if kind == "number":
        return Labels(kind, texts=texts)
    if len(found) < 2:
        only = f"only one: {min(found)!r}" if found else "none"
        raise SaccadeError(
            f"at least two different labels are needed to tell {labelled} apart, but the data has {only}"
        )
    numeric = all(name.removeprefix("-").isdecimal() for name in found)
    return Labels(kind, tuple(sorted(found, key=lambda name: (int(name) if numeric else 0, name))), texts)


def number_in(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise SaccadeError(f'expected a number, got {text!r}; classes are learned with writer.kind = "label"')
    return value
