"""The interface of all evaluation results."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from saccade.config.metric import Score, find_metrics
from saccade.config.plugins import Kinds
from saccade.display import Tabular


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

    def to_records(self) -> list[dict[str, Any]]:
        """Return the scores, a row each; `to_pandas` makes a data frame of them."""
        ...

    def to_pandas(self) -> Any: ...


class ScoreTable(Tabular):
    """A result as a table with a row for each score; printed as `saccade evaluate` prints it."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def rows(self) -> list[tuple[str, str, str]]: ...

    @abstractmethod
    def summary(self) -> str: ...

    def to_records(self) -> list[dict[str, Any]]:
        """Return name, value and signature of each score."""
        found = self.to_dict()["scores"].items()
        return [
            {"metric": name, **{key: score[key] for key in ("value", "signature") if key in score}}
            if isinstance(score, Mapping)
            else {"metric": name, "value": score}
            for name, score in found
        ]

    def __str__(self) -> str:
        lines = ["  ".join(cell for cell in row if cell) for row in self.rows()]
        return "\n".join([*lines, self.summary()])


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
