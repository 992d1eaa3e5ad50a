"""What is counted while texts are tokenised."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """What is counted while pairs go by: all, and for each reason to drop one how many and the place of the first."""

    total: int = 0
    longest: int = 0
    bytes: int = 0
    empty: list[int] = field(default_factory=list)  # count, corpus, line
    long: list[int] = field(default_factory=list)

    def drop(self, which: list[int], corpus: int, line: int) -> None:
        which[:] = [which[0] + 1, *which[1:]] if which else [1, corpus, line]
