"""The interface of all evaluation results."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from saccade.config.metric import Score, find_metrics
from saccade.config.plugins import Kinds


class Result(Protocol):
    """The result of evaluating a model on some data."""

    @property
    def hypotheses(self) -> Sequence[str]:
        """What `--output` saves: outputs, or log-probabilities of all tokens."""
        ...

    @property
    def truncated_lengths(self) -> tuple[int, ...]:
        """The number of tokens of each output that was truncated at its limit."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return all but the outputs, for JSON."""
        ...

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and description of each score, for a table."""
        ...

    def summary(self) -> str:
        """Return the number of examples and the speed."""
        ...


class ScoredResult(Result, Protocol):
    """A result with scores of outputs, by which runs can be compared."""

    @property
    def scores(self) -> Mapping[str, Score]: ...

    @property
    def outputs_per_second(self) -> float: ...


def format_scores(scores: Mapping[str, Score], kinds: Kinds | None = None) -> list[tuple[str, str, str]]:
    """Return name, value and signature of each score, for a table."""
    rows = []
    for name, score in scores.items():
        metric = next(iter(find_metrics(name, kinds)), None)
        rows.append((name, score.format_value(metric), score.undefined or score.signature))
    return rows
