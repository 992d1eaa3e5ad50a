"""The interface of a metric: one object with everything that commands and training ask about it.

Recipes and commands name a metric, and the functions here find its object: one of METRICS in a module of
`saccade.score.metrics`, or a user's own of `kinds=` or a plugin. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import math
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from saccade.config.plugins import Kinds
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "saccade.score.metrics"
TEXT = "text"  # outputs with one reference each
CAPTIONS = "captions"  # outputs with a list of references each
LABEL, TAGS, NUMBER = "label", "tags", "number"  # outputs of the task "classify"
ERROR_RATES = ("wer", "cer")  # measured together: of words and of characters
LANGUAGE_MODEL = "language-model"  # no outputs: the metric gets the model and texts


@dataclass(frozen=True)
class Score:
    """The value of a metric, and how it was computed."""

    value: float  # most are from 0 to 100; TER may be larger
    signature: str
    undefined: str = ""  # why it has no value; then `value` is 0, by which trainings and runs are compared

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `value` is None where it is undefined."""
        found = {"value": self.value, "signature": self.signature}
        return found if not self.undefined else {**found, "value": None, "undefined": self.undefined}

    def format_value(self, metric: Metric | None) -> str:
        """For a table, with the digits of the metric."""
        if self.undefined:
            return "undefined"
        return f"{self.value:.2f}" if metric is None else metric.format_value(self.value)


@dataclass(frozen=True)
class Predictions:
    """Outputs of a model, and what they are scored against."""

    outputs: Sequence[Any]  # texts
    references: Sequence[Any]  # a text for each output; of captions, a list of texts, each of which is correct
    sources: Sequence[str] = ()  # inputs; empty where outputs were read from a file
    kind: str = TEXT  # of the outputs, one of `Metric.outputs`
    lowercase: bool = False  # whether case is ignored

    @property
    def case(self) -> str:
        """`lc` or `mixed`, for a signature."""
        return "lc" if self.lowercase else "mixed"

    def fold_case(self) -> Predictions:
        """These outputs and references in lower case if case is ignored, else as they are."""
        if not self.lowercase:
            return self
        outputs, references = ([lower_case(item) for item in items] for items in (self.outputs, self.references))
        return replace(self, outputs=outputs, references=references)


class Metric:
    """A metric that is computed from all outputs at once; `compute` is all that is missing here.

    Runs can be compared by a `MeanMetric` or a `SumMetric`, which tell how examples contribute.
    """

    name: str  # by which recipes and commands choose the metric
    title: str = ""  # heading of its column in tables; empty: the name
    signature: str = ""  # how it is computed, in a few words, beside each value
    outputs: tuple[str, ...] = (TEXT,)  # kinds of outputs that it scores: "text", "captions", "label", "tags", ...
    higher_is_better: bool = True
    is_default: bool = False  # whether `saccade evaluate` computes it without --metrics
    is_validated: bool = False  # whether each validation of a training computes it, even if train.metric is another
    decimals: int = 2  # digits after the point in tables
    order: int = 100  # position in tables and messages, smallest first

    def check_available(self) -> None:
        """Raise a SaccadeError if a package that it needs is not installed; asked before anything is decoded."""

    def compute(self, predictions: Predictions) -> float:
        """The value for all outputs together."""
        raise NotImplementedError(f"metric '{self.name}' has no method compute")

    def format_signature(self, predictions: Predictions) -> str:
        return f"{self.signature}|case:lc" if predictions.lowercase else self.signature

    def score(self, predictions: Predictions) -> Score:
        """The value and how it was computed."""
        value = self.check_number(self.compute(predictions), "compute")
        if not math.isfinite(value):
            raise SaccadeError(
                f"metric '{self.name}' gave {value} for {len(predictions.references)} examples, expected a finite "
                "number; is it divided by a count that can be 0?"
            )
        return Score(value, self.format_signature(predictions))

    def check_number(self, value: Any, method: str) -> float:
        """What a method of the metric returned, as a float."""
        try:
            if not isinstance(value, str | bytes):  # float would parse them
                return float(value)
        except (TypeError, ValueError):
            pass
        got = f"{value!r:.40} ({type(value).__name__})"
        raise SaccadeError(f"metric '{self.name}': {method} must return a number, got {got}; return a float")

    def get_title(self) -> str:
        return self.title or self.name

    def format_value(self, value: float, *, sign: str = "") -> str:
        return f"{value:{sign}.{self.decimals}f}"


class SumMetric(Metric):
    """A metric that is a function of sums over examples: runs can be compared by it with a paired bootstrap test."""

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        """(N, n) numbers per example, whose sums over examples `compute_from_sums` gets."""
        raise NotImplementedError(f"metric '{self.name}' has no method compute_statistics")

    def compute_from_sums(self, sums: np.ndarray) -> float:
        """The value from the sums (n,) over some examples."""
        raise NotImplementedError(f"metric '{self.name}' has no method compute_from_sums")

    def compute(self, predictions: Predictions) -> float:
        return self.compute_from_sums(self.compute_statistics(predictions).sum(0))


class MeanMetric(SumMetric):
    """A metric that is the mean of a value per example; `score_example` is all that is missing here."""

    def score_example(self, output: str, reference: Any) -> float:
        raise NotImplementedError(f"metric '{self.name}' has no method score_example")

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        import numpy as np

        folded = predictions.fold_case()
        pairs = zip(folded.outputs, folded.references, strict=True)
        values = (self.check_number(self.score_example(*pair), "score_example") for pair in pairs)
        return np.array([(value, 1) for value in values], dtype=np.float64)

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return float(sums[0] / sums[1])


def lower_case(text: Any) -> Any:
    """A text, or each of several, in lower case."""
    return text.lower() if isinstance(text, str) else [item.lower() for item in text]


class Loss(Metric):
    """The validation loss, which training measures itself."""

    name = "loss"
    outputs = ()
    higher_is_better = False
    decimals = 4


LOSS = Loss()


# ---- metrics by name


@functools.cache
def list_built_in() -> tuple[Metric, ...]:
    """The metrics that come with saccade; several may have one name, for different kinds of outputs."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.submodule_search_locations, "saccade is not installed whole"
    names = [module.name for module in pkgutil.iter_modules(found.submodule_search_locations)]
    metrics: list[Metric] = [
        metric for name in names for metric in importlib.import_module(f"{PACKAGE}.{name}").METRICS
    ]
    return tuple(sorted(metrics, key=lambda metric: metric.order))


def list_metrics(outputs: str, kinds: Kinds | None = None) -> list[Metric]:
    """All metrics for this kind of outputs; of the user's own, those that were given.

    Outputs of a kind that saccade does not have are those of an installed plugin, which has their metrics.
    """
    kinds = Kinds() if kinds is None else kinds
    known = {kind for metric in list_built_in() for kind in metric.outputs}
    own = [get_own(name, kinds) for name in (kinds if outputs in known else kinds.list_names())]
    return [metric for metric in (*list_built_in(), *own) if metric is not None and outputs in metric.outputs]


def list_names(outputs: str, kinds: Kinds | None = None) -> tuple[str, ...]:
    return tuple(metric.name for metric in list_metrics(outputs, kinds))


def list_default_names(outputs: str, kinds: Kinds | None = None) -> tuple[str, ...]:
    """Names of the metrics that `saccade evaluate` computes if none are named."""
    return tuple(metric.name for metric in list_metrics(outputs, kinds) if metric.is_default)


def find_metrics(name: str, kinds: Kinds | None = None) -> list[Metric]:
    """All metrics of this name, which differ in the kinds of outputs that they score; empty if there is none."""
    kinds = Kinds() if kinds is None else kinds
    own = get_own(name, kinds) if name in kinds else None
    if own is None and name == LOSS.name:
        return [LOSS]
    if own is None and (found := [metric for metric in list_built_in() if metric.name == name]):
        return found
    kinds.find(name)  # so that a run remembers the plugin
    own = own or get_own(name, kinds)
    return [] if own is None else [own]


def get_own(name: str, kinds: Kinds) -> Metric | None:
    """The user's own metric of this name; None if the name is of no kind, or of another kind than a metric."""
    own = kinds.peek(name)
    if isinstance(own, type) and issubclass(own, Metric):
        own = own()
    if not isinstance(own, Metric):
        return None
    if not getattr(own, "name", ""):
        raise SaccadeError(f"metric '{name}': its class {type(own).__name__} has no name; add name = \"{name}\" to it")
    if own.name != name:
        raise SaccadeError(f"kinds={{'{name}': ...}} is a metric with the name '{own.name}'; use that name")
    if any(metric.name == name for metric in (LOSS, *list_built_in())):
        raise SaccadeError(f"'{name}' is a metric of saccade already; give yours another name")
    return own


def find_metric(name: str, outputs: str, kinds: Kinds | None = None) -> Metric | None:
    """The metric of this name for this kind of outputs; None if there is none."""
    return next((metric for metric in find_metrics(name, kinds) if outputs in metric.outputs), None)


def get_metric(name: str, kinds: Kinds | None = None) -> Metric:
    """A metric of this name, for any kind of outputs; all of one name agree on which direction is better."""
    found = find_metrics(name, kinds)
    if not found:
        kinds = Kinds() if kinds is None else kinds
        own = [metric for kind in kinds.list_names() if (metric := get_own(kind, kinds)) is not None]
        known = dict.fromkeys(metric.name for metric in (LOSS, *list_built_in(), *own))
        raise SaccadeError(f"unknown metric '{name}'{format_expected(name, [*known], kinds)}")
    return found[0]


def get_metrics(names: Sequence[str], outputs: str, kinds: Kinds | None = None, *, what: str = "") -> list[Metric]:
    """The metrics of these names for one kind of outputs; an unknown one is refused, with `what` it would be of."""
    found = {name: find_metric(name, outputs, kinds) for name in names}
    for name, metric in found.items():
        if metric is None:
            known = list_names(outputs, kinds)
            raise SaccadeError(f"unknown metric '{name}'{what}{format_expected(name, known, kinds)}")
        metric.check_available()
    return [metric for metric in found.values() if metric is not None]


def format_expected(name: str, known: Sequence[str], kinds: Kinds | None = None) -> str:
    """What follows a message about a metric that cannot be used: the known ones, and what to do."""
    if found := find_metrics(name, kinds):
        scored = " and ".join(f'"{kind}"' for metric in found for kind in metric.outputs)
        return f"; expected one of {', '.join(known)}; '{name}' is for outputs of the kind {scored or 'none'}"
    return f"; expected one of {', '.join(known)}{format_unknown(name, known, kinds)}"


def format_unknown(name: str, known: Sequence[str], kinds: Kinds | None = None) -> str:
    """What follows a message about an unknown metric: the closest one, or how to bring one's own."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    own = f"your own: --plugin FILE.py, or kinds={{'{name}': ...}} in Python"
    hint = f"did you mean '{near[0]}'?" if near else own
    return f"; {hint}{'' if kinds is None else kinds.describe_failures()}"
