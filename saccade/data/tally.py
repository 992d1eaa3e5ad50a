"""What is counted while texts are tokenised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """What is counted while pairs go by: all, and for each reason to drop one how many and the place of the first."""

    total: int = 0
    longest: int = 0
    bytes: int = 0
    empty: list[int] = field(default_factory=list)  # count, corpus, line
    long: list[int] = field(default_factory=list)

    def full(self, block: Iterable[Any], corpus: int) -> list[tuple[int, list[str]]]:
        """The line and the texts of each row that lacks none; all rows are counted."""
        rows = []
        for line, *texts in block:
            self.total += 1
            if all(text.strip() for text in texts):
                rows.append((line, texts))
            else:
                self.drop(self.empty, corpus, line)
        return rows

    def drop(self, which: list[int], corpus: int, line: int) -> None:
        which[:] = [which[0] + 1, *which[1:]] if which else [1, corpus, line]
