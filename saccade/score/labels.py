"""Metrics of labels: accuracy, F1, Matthews correlation; Pearson and Spearman correlation of numbers.

Confusion matrices have a row per reference class and a column per predicted class. All scores are in percent.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from saccade.config.metric import (
    Predictions,
    Score,
    find_metric,
    format_expected,
    get_metrics,
    list_default_names,
    list_names,
)
from saccade.config.plugins import Kinds
from saccade.data.tokenization.labels import parse_number
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.metrics.labels import RANKED_LABELS, TOP_5
from saccade.score.result import ScoreTable, format_scores
from saccade.score.skipped_files import format_skipped_files

MAX_TABLE_CLASSES = 12  # a full confusion matrix of more classes does not fit a terminal


@dataclass(frozen=True)
class LabelEvaluation(ScoreTable):
    """Scores of labels, with the confusion matrix."""

    truncated_lengths: ClassVar[tuple[int, ...]] = ()
    scores: dict[str, Score]
    sentences: int
    hypotheses: list[str]
    names: tuple[str, ...] = ()  # classes
    counts: Sequence[Sequence[int]] = ()  # confusion matrix
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()  # messages about files that could not be read
    counted: str = "texts"  # noun for the examples, in summaries
    kinds: Kinds | None = None  # the user's own metrics

    def to_dict(self) -> dict[str, Any]:
        """Return all but the labels, for JSON."""
        result: dict[str, Any] = {
            "texts": self.sentences,
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
        }
        if self.names:
            by_class = dict(zip(self.names, f1_per_class(compute_margins(np.array(self.counts))).tolist(), strict=True))
            result |= {"f1_of_class": by_class, "names": self.names, "counts": self.counts}
        skipped = {"left_out": self.left_out} if self.left_out else {}
        return {**result, "seconds": self.seconds, **skipped}

    @property
    def outputs_per_second(self) -> float:
        return self.sentences / self.seconds

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and signature of each score, for a table."""
        return format_scores(self.scores, self.kinds)

    def summary(self) -> str:
        """Return the number of examples, the speed, and the confusion matrix."""
        per_second = self.sentences / self.seconds if self.seconds else 0
        speed = f" in {self.seconds:.1f} s: {per_second:,.1f} {self.counted}/s" if self.seconds else ""
        what = self.counted if self.sentences != 1 else self.counted.removesuffix("s")
        summary = f"{self.sentences:,} {what}{speed}{format_skipped_files(self.left_out)}"
        return (
            f"{summary}\n\n{format_confusion_matrix(self.names, self.counts, self.counted)}" if self.names else summary
        )


def evaluate_labels(
    predictor: Predictor, pairs: Sequence[tuple[str, str]], *, metrics: Sequence[str] | None = None
) -> LabelEvaluation:
    """Label every text and score the labels by the given metrics, or the default ones.

    Of questions, an answer that does not occur in the training data counts as wrong; elsewhere an unknown label is an
    error.
    """
    media = predictor.recipe.reader.media
    counted = "texts" if media is None else media.unit
    if not pairs:
        raise SaccadeError(f"there is nothing to evaluate: no {counted} with labels were given; is the file empty?")
    labels, references = predictor.labels, [label for _, label in pairs]
    names = tuple(dict.fromkeys((*labels.names, *references))) if predictor.fields else labels.names
    for number, label in enumerate(() if predictor.fields else references, start=1):
        try:
            labels.encode(label)
        except SaccadeError as error:
            raise SaccadeError(f"{counted.removesuffix('s')} {number}: {error}") from None
    texts, kinds = [text for text, _ in pairs], predictor.recipe.kinds
    decoding = predictor.recipe.predict.model_copy(update={"n_best": TOP_5.k, "beam": TOP_5.k})
    begin = time.perf_counter()
    hypotheses = predictor.candidates(texts, decoding=decoding)
    seconds = time.perf_counter() - begin
    predicted = [outputs[0].text for outputs in hypotheses]
    scores = label_scores(labels.kind, predicted, references, metrics, sources=texts, kinds=kinds)
    if metrics is None and media is not None and labels.size > TOP_5.k:
        best = [{one.text for one in outputs} for outputs in hypotheses]
        scores[TOP_5.name] = TOP_5.score(Predictions(best, references, kind=RANKED_LABELS))
    counts = build_confusion_matrix(labels.kind, predicted, references, names).tolist() if names else []
    return LabelEvaluation(scores, len(pairs), predicted, names, counts, seconds, counted=counted, kinds=kinds)


def check_label_metrics(kind: str, metrics: Sequence[str], kinds: Kinds, *, lowercase: bool) -> None:
    """Refuse metrics that are not of labels of this kind, and --lowercase."""
    unknown = [name for name in metrics if find_metric(name, kind, kinds) is None]
    if unknown or lowercase:
        expected = format_expected(unknown[0], list_names(kind, kinds), kinds) if unknown else ""
        raise SaccadeError(
            f"labels have fixed metrics and no letter case; leave out --metrics and --lowercase{expected}"
        )


def label_scores(
    kind: str,
    predicted: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] | None = None,
    *,
    sources: Sequence[str] = (),
    kinds: Kinds | None = None,
) -> dict[str, Score]:
    """Compute the given metrics of labels of this kind, or the default ones."""
    check_lengths(predicted, references)
    predictions = Predictions(predicted, references, sources, kind)
    found = get_metrics(metrics or list_default_names(kind, kinds), kind, kinds)
    return {metric.name: metric.score(predictions) for metric in found}


def check_lengths(predicted: Sequence[str], references: Sequence[str]) -> None:
    if len(predicted) != len(references) or not predicted:
        raise SaccadeError(f"expected a label for each of {len(references)} references, got {len(predicted)}")


def build_confusion_matrix(
    kind: str, predicted: Sequence[str], references: Sequence[str], names: Sequence[str]
) -> np.ndarray:
    """Return (C, C): how often a text, or a word, of each class was predicted as each class."""
    indices = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for ours, theirs in zip(predicted, references, strict=True):
        for one, other in zip(split_labels(kind, ours), split_labels(kind, theirs), strict=True):
            counts[indices[other], indices[one]] += 1
    return counts


def build_label_statistics(kind: str, predicted: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return (N, n) statistics per text, from whose sum every score can be computed.

    For classes: the flattened result of `compute_margins`. For numbers: 1, x, y, xx, yy, xy of standardized numbers,
    and the same of ranks; a sample of texts keeps the ranks among all texts.
    """
    check_lengths(predicted, references)
    if kind == "number":
        x, y = (np.array([parse_number(text) for text in texts]) for texts in (predicted, references))
        pairs = ((x, y), (compute_ranks(x), compute_ranks(y)))
        return np.concatenate([compute_moments(standardize(a), standardize(b)) for a, b in pairs], axis=1)
    names = list_class_names(kind, [*predicted, *references])
    rows = (
        build_confusion_matrix(kind, [ours], [theirs], names)
        for ours, theirs in zip(predicted, references, strict=True)
    )
    return np.stack([compute_margins(counts).flatten() for counts in rows])


def sum_label_statistics(kind: str, predicted: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return the sum over texts of `build_label_statistics`, without a row for each text."""
    check_lengths(predicted, references)
    if kind == "number":
        sums: np.ndarray = build_label_statistics(kind, predicted, references).sum(0)
        return sums
    names = list_class_names(kind, [*predicted, *references])
    return compute_margins(build_confusion_matrix(kind, predicted, references, names)).flatten()


def split_labels(kind: str, label: str) -> list[str]:
    return label.split() if kind == "tags" else [label]


def list_class_names(kind: str, labels: Sequence[str]) -> list[str]:
    return sorted({name for label in labels for name in split_labels(kind, label)})


def compute_margins(counts: np.ndarray) -> np.ndarray:
    """Reduce a confusion matrix (C, C) to (3, C): true positives, predicted and actual counts of each class."""
    return np.stack([np.diag(counts), counts.sum(0), counts.sum(1)])


def accuracy(margins: np.ndarray) -> float:
    correct, _, actual = margins.sum(1)
    return 100 * float(correct) / float(actual) if actual else 0.0


def f1_per_class(margins: np.ndarray) -> np.ndarray:
    """Return 2 tp / (2 tp + fp + fn) of each class; 0 for one that neither occurs nor is predicted."""
    correct, predicted, actual = margins
    scores: np.ndarray = 100 * 2 * correct / np.maximum(predicted + actual, 1)
    return scores


def macro_f1(margins: np.ndarray) -> float:
    """Mean over the classes that occur or are predicted."""
    used = margins[1] + margins[2] > 0
    return float(f1_per_class(margins)[used].mean()) if used.any() else 0.0


def matthews(margins: np.ndarray) -> float:
    """(c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)) (Gorodkin 2004); 0 if one side is constant."""
    predicted, actual = margins[1].astype(float), margins[2].astype(float)
    total, correct = float(actual.sum()), float(margins[0].sum())
    denominator = (total**2 - (predicted**2).sum()) * (total**2 - (actual**2).sum())
    return 100 * float((correct * total - (predicted * actual).sum()) / denominator**0.5) if denominator > 0 else 0.0


def standardize(x: np.ndarray) -> np.ndarray:
    """Shift to mean 0 and scale to at most 1, which changes no correlation; equal numbers become exactly 0.

    Sums of squares of numbers whose mean is large beside their deviation would lose the deviation.
    """
    x = x - x[0]  # exact for close numbers
    x = x - x.mean()
    return x / (np.abs(x).max() or 1.0)


def compute_moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)


def compute_correlation(sums: np.ndarray) -> float:
    """Compute Pearson's correlation from sums of 1, x, y, xx, yy, xy; 0 if x or y is constant."""
    n, x, y, xx, yy, xy = map(float, sums)
    variances = [n * squares - total * total for squares, total in ((xx, x), (yy, y))]
    if any(variance <= 1e-12 * n * squares for variance, squares in zip(variances, (xx, yy), strict=True)):
        return 0.0  # rounding errors are all that is left
    return 100 * max(-1.0, min(1.0, (n * xy - x * y) / math.prod(map(math.sqrt, variances))))


def compute_ranks(x: np.ndarray) -> np.ndarray:
    """Return ranks from 1 for the smallest; ties share the mean of their ranks."""
    order = x.argsort(kind="stable")
    positions = np.empty(len(x))
    positions[order] = np.arange(1, len(x) + 1)
    _, group = np.unique(x, return_inverse=True)
    return (np.bincount(group, positions) / np.bincount(group))[group]


def format_confusion_matrix(names: Sequence[str], counts: Sequence[Sequence[int]], counted: str = "texts") -> str:
    """Format the matrix as a table with the F1 of each class; only its diagonal if it is too wide."""
    table = np.array(counts)
    f1 = f1_per_class(compute_margins(table))
    if len(names) > MAX_TABLE_CLASSES:
        titles = ["class", counted, "right", "f1"]
        cells = [[n, str(table[i].sum()), str(table[i, i]), f"{f1[i]:.1f}"] for i, n in enumerate(names)]
    else:
        titles = ["is \\ said", *names, "f1"]
        cells = [[n, *map(str, table[i]), f"{f1[i]:.1f}"] for i, n in enumerate(names)]
    rows = [titles, *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines)
