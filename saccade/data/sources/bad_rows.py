"""Rows that cannot be used, such as one without a field: an error, or skipped and listed (`data.on_error`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from saccade.errors import SaccadeError

MAX_SKIPPED_ROWS = 1_000_000  # of a corpus; they are in memory
MAX_SKIPPED_SHARE = 0.5  # of the rows of a corpus


class BadRowError(SaccadeError):
    """A row that cannot be used: its file and number ("pairs.csv:7"), and the reason."""

    def __init__(self, row: str, reason: str) -> None:
        self.row, self.reason = row, reason
        super().__init__(f"{row}: {reason}")


OnBadRow = Callable[[BadRowError], None]


def raise_error(error: BadRowError) -> None:
    """Stop at a bad row."""
    raise error


def ignore_error(error: BadRowError) -> None:
    """Skip a bad row that another pass over the corpus reports."""


@dataclass
class BadRows:
    """The bad rows of a corpus; called with each, it raises an error or collects them (`data.on_error = "skip"`)."""

    corpus: str
    skips: bool = False
    reasons: dict[str, str] = field(default_factory=dict)  # by row; every pass over the corpus finds the same rows

    def __call__(self, error: BadRowError) -> None:
        if not self.skips:
            raise SaccadeError(f"{error}; correct it, or skip and list all such rows: data.on_error=skip") from None
        self.reasons[error.row] = error.reason
        if len(self.reasons) > MAX_SKIPPED_ROWS:
            raise SaccadeError(
                f"more than {MAX_SKIPPED_ROWS:,} rows of {self.corpus} cannot be used, the last one {error}; clean it"
            )

    def check_share(self, num_good: int) -> None:
        """Raise if more than half of the rows were skipped; the other `num_good` rows were not."""
        count, total = len(self.reasons), len(self.reasons) + num_good
        if count > MAX_SKIPPED_SHARE * total:
            raise SaccadeError(
                f"{count:,} of {total:,} rows of {self.corpus} cannot be used, more than half; is it the right file "
                f"with the right columns? the first one is {self._get_first()}"
            )

    def format_note(self) -> str:
        """Return a line about the skipped rows; empty if there are none."""
        count = len(self.reasons)
        noun = "row was" if count == 1 else "rows were"
        return f"{count:,} {noun} skipped in {self.corpus}; the first one is {self._get_first()}" if count else ""

    def to_json(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "reasons": self.reasons}

    def adopt(self, values: dict[str, Any]) -> None:
        """Take over what was found when the same content was read before, when its file may have had another name."""
        for row, reason in values["reasons"].items():
            moved = row.startswith(values["corpus"])
            self(BadRowError(self.corpus + row.removeprefix(values["corpus"]) if moved else row, reason))

    def _get_first(self) -> str:
        row, reason = next(iter(self.reasons.items()))
        return f"{row}: {reason}"


def list_rows(found: Iterable[BadRows]) -> list[dict[str, str]]:
    """Return the skipped rows as records; each once, where a corpus is read for training and for validation."""
    reasons = {row: reason for rows in found for row, reason in [*rows.reasons.items()]}  # of a thread
    return [{"row": row, "error": reason} for row, reason in reasons.items()]
