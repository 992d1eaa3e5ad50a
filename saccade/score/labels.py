"""How good labels are: accuracy, F1, Matthews' correlation, and for numbers Pearson's and Spearman's.

Counts of classes are a matrix: row the reference, column what was said. Every score is in percent, correlations too.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from saccade.data.tokenization.labels import number_in
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.bleu import Score
from saccade.score.left_out import told_of

OF_KIND = {
    "label": ("accuracy", "f1", "matthews"),
    "tags": ("accuracy", "f1"),
    "number": ("pearson", "spearman"),
}
TOP = 5  # classes of a picture among which the right one may be
SHOWN = 12  # classes of a table that still fits a terminal


@dataclass(frozen=True)
class LabelEvaluation:
    """What was measured of some labels."""

    cut: ClassVar[tuple[int, ...]] = ()
    scores: dict[str, Score]
    sentences: int
    hypotheses: list[str]
    names: tuple[str, ...] = ()  # of classes
    counts: Sequence[Sequence[int]] = ()  # how often each class of the reference was said to be each class
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()  # what is wrong with files that could not be read
    counted: str = "texts"  # what the labels are of

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the labels themselves."""
        found: dict[str, Any] = {
            "texts": self.sentences,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
        }
        if self.names:
            by_class = dict(zip(self.names, f1_of_each(margins(np.array(self.counts))).tolist(), strict=True))
            found |= {"f1_of_class": by_class, "names": self.names, "counts": self.counts}
        left = {"left_out": self.left_out} if self.left_out else {}
        return {**found, "seconds": self.seconds, **left}

    @property
    def outputs_per_second(self) -> float:
        return self.sentences / self.seconds

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        return [(name, f"{score.value:.2f}", score.signature) for name, score in self.scores.items()]

    def summary(self) -> str:
        each = self.sentences / self.seconds if self.seconds else 0
        speed = f" in {self.seconds:.1f} s: {each:,.1f} {self.counted}/s" if self.seconds else ""
        what = self.counted if self.sentences != 1 else self.counted.removesuffix("s")
        told = f"{self.sentences:,} {what}{speed}{told_of(self.left_out)}"
        return f"{told}\n\n{confusions(self.names, self.counts, self.counted)}" if self.names else told


def evaluate_labels(predictor: Predictor, pairs: Sequence[tuple[str, str]]) -> LabelEvaluation:
    """Labels every text and compares; an answer that no question of the training data has is wrong, and no mistake."""
    media = predictor.recipe.reader.media
    counted = "texts" if media is None else media.counted
    if not pairs:
        raise SaccadeError(f"there is nothing to evaluate: no {counted} with labels were given; is the file empty?")
    labels, references = predictor.labels, [label for _, label in pairs]
    names = tuple(dict.fromkeys((*labels.names, *references))) if predictor.fields else labels.names
    for number, label in enumerate(() if predictor.fields else references, start=1):
        try:
            labels.encode(label)
        except SaccadeError as error:
            raise SaccadeError(f"{counted.removesuffix('s')} {number}: {error}") from None
    several, begin = predictor.recipe.predict.model_copy(update={"n_best": TOP, "beam": TOP}), time.perf_counter()
    found = predictor.candidates([text for text, _ in pairs], decoding=several)
    seconds = time.perf_counter() - begin
    said = [outputs[0].text for outputs in found]
    scores = label_scores(labels.kind, said, references)
    if media is not None and labels.size > TOP:
        among = [label in {one.text for one in outputs} for label, outputs in zip(references, found, strict=True)]
        scores["top-5"] = Score(100 * sum(among) / len(among), f"share of labels among the best {TOP}")
    counts = counts_of(labels.kind, said, references, names).tolist() if names else []
    return LabelEvaluation(scores, len(pairs), said, names, counts, seconds, counted=counted)


def refuse_metrics() -> None:
    """Labels have no words and no case."""
    raise SaccadeError("labels are measured in one way, so that --metrics and --lowercase say nothing; leave them out")


def label_scores(kind: str, said: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """Every score of labels of this kind."""
    check_each(said, references)
    if kind == "number":
        row = statistics_of(kind, said, references).sum(0)
    else:
        row = margins(counts_of(kind, said, references, names_of(kind, [*said, *references]))).flatten()
    score = scores_of(kind)
    return {name: Score(score[name](row), SIGNATURES[name]) for name in OF_KIND[kind]}


def check_each(said: Sequence[str], references: Sequence[str]) -> None:
    if len(said) != len(references) or not said:
        raise SaccadeError(f"expected a label for each of {len(references)} references, got {len(said)}")


def counts_of(kind: str, said: Sequence[str], references: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """(C, C): how often a text, or a word, of each class was said to be of each class."""
    places = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for ours, theirs in zip(said, references, strict=True):
        for one, other in zip(classes(kind, ours), classes(kind, theirs), strict=True):
            counts[places[other], places[one]] += 1
    return counts


def statistics_of(kind: str, said: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(N, n): numbers of single texts that add up, from whose sum every score can be made.

    Classes: what `margins` has, one row after the other. Numbers: 1, x, y, xx, yy, xy, and the same with ranks in
    the place of numbers; a sample of texts keeps the ranks of all of them.
    """
    check_each(said, references)
    if kind == "number":
        x, y = (np.array([number_in(text) for text in texts]) for texts in (said, references))
        return np.concatenate([moments(x, y), moments(ranks(x), ranks(y))], axis=1)
    names = names_of(kind, [*said, *references])
    rows = (counts_of(kind, [ours], [theirs], names) for ours, theirs in zip(said, references, strict=True))
    return np.stack([margins(counts).flatten() for counts in rows])


def scores_of(kind: str) -> dict[str, Any]:
    """What makes each score of summed statistics."""
    if kind == "number":
        return {"pearson": lambda row: correlation(row[:6]), "spearman": lambda row: correlation(row[6:])}
    return {
        "accuracy": lambda row: accuracy(row.reshape(3, -1)),
        "f1": lambda row: macro_f1(row.reshape(3, -1)),
        "matthews": lambda row: matthews(row.reshape(3, -1)),
    }


SIGNATURES = {
    "accuracy": "share of labels that are right",
    "f1": "mean over classes",
    "matthews": "correlation of classes, times 100",
    "pearson": "correlation of numbers, times 100",
    "spearman": "correlation of ranks, times 100",
}


def classes(kind: str, label: str) -> list[str]:
    return label.split() if kind == "tags" else [label]


def names_of(kind: str, labels: Sequence[str]) -> list[str]:
    return sorted({name for label in labels for name in classes(kind, label)})


def margins(counts: np.ndarray) -> np.ndarray:
    """(3, C) of (C, C): how often each class was right, was said, and is there; more no score needs to know."""
    return np.stack([np.diag(counts), counts.sum(0), counts.sum(1)])


def accuracy(found: np.ndarray) -> float:
    right, _, there = found.sum(1)
    return 100 * float(right) / float(there) if there else 0.0


def f1_of_each(found: np.ndarray) -> np.ndarray:
    """2 tp / (2 tp + fp + fn) of each class; 0 for one that neither occurs nor is said."""
    right, said, there = found
    each: np.ndarray = 100 * 2 * right / np.maximum(said + there, 1)
    return each


def macro_f1(found: np.ndarray) -> float:
    """The mean over the classes that occur or are said."""
    used = found[1] + found[2] > 0
    return float(f1_of_each(found)[used].mean()) if used.any() else 0.0


def matthews(found: np.ndarray) -> float:
    """(c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)) (Gorodkin 2004); 0 where one is constant."""
    said, there = found[1].astype(float), found[2].astype(float)
    total, right = float(there.sum()), float(found[0].sum())
    below = (total**2 - (said**2).sum()) * (total**2 - (there**2).sum())
    return 100 * float((right * total - (said * there).sum()) / below**0.5) if below > 0 else 0.0


def moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)


def correlation(sums: np.ndarray) -> float:
    """Pearson's, from sums of 1, x, y, xx, yy, xy; 0 where one of them is constant."""
    n, x, y, xx, yy, xy = map(float, sums)
    below = (n * xx - x * x) * (n * yy - y * y)
    return 100 * (n * xy - x * y) / below**0.5 if below > 1e-12 * max(n * n * xx * yy, 1e-300) else 0.0


def ranks(x: np.ndarray) -> np.ndarray:
    """1 for the smallest; equal numbers share the mean of their ranks."""
    order = x.argsort(kind="stable")
    places = np.empty(len(x))
    places[order] = np.arange(1, len(x) + 1)
    _, which = np.unique(x, return_inverse=True)
    return (np.bincount(which, places) / np.bincount(which))[which]


def confusions(names: Sequence[str], counts: Sequence[Sequence[int]], counted: str = "texts") -> str:
    """The matrix as a table, with the F1 of each class; only its diagonal where it would be too wide."""
    table = np.array(counts)
    each = f1_of_each(margins(table))
    if len(names) > SHOWN:
        titles = ["class", counted, "right", "f1"]
        cells = [[n, str(table[i].sum()), str(table[i, i]), f"{each[i]:.1f}"] for i, n in enumerate(names)]
    else:
        titles = ["is \\ said", *names, "f1"]
        cells = [[n, *map(str, table[i]), f"{each[i]:.1f}"] for i, n in enumerate(names)]
    rows = [titles, *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines)
