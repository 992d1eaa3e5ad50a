"""What an evaluation gives, whatever was measured."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from saccade.score.bleu import Score


class Result(Protocol):
    """What was measured of a model on some data."""

    @property
    def hypotheses(self) -> Sequence[str]:
        """What can be kept in a file: outputs, or values of all tokens."""
        ...

    @property
    def cut(self) -> tuple[int, ...]:
        """The length in tokens of each output that was cut at the most that it may have."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the outputs themselves."""
        ...

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        ...

    def summary(self) -> str:
        """How much was measured, and how fast."""
        ...


class ScoredResult(Result, Protocol):
    """One with scores of outputs, so that runs can be compared."""

    @property
    def scores(self) -> Mapping[str, Score]: ...

    @property
    def outputs_per_second(self) -> float: ...
