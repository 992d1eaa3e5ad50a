"""Accuracy, F1 and Matthews correlation of classes and tags; Pearson and Spearman correlation of numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from saccade.config.metric import LABEL, NUMBER, TAGS, Metric, Predictions, Score, SumMetric
from saccade.data.tokenization.labels import parse_number


class LabelMetric(SumMetric):
    """A score that follows from how often each class is predicted, correct and right, or from moments of numbers."""

    is_default = is_validated = True

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        from saccade.score.labels import build_label_statistics

        return build_label_statistics(predictions.kind, predictions.outputs, predictions.references)

    def compute(self, predictions: Predictions) -> float:
        from saccade.score.labels import sum_label_statistics

        return self.compute_from_sums(
            sum_label_statistics(predictions.kind, predictions.outputs, predictions.references)
        )

    def format_signature(self, predictions: Predictions) -> str:
        return self.signature


class Accuracy(LabelMetric):
    name = "accuracy"
    title = "accuracy %"
    signature = "share of labels that are right"
    outputs = (LABEL, TAGS)
    order = 20

    def compute_from_sums(self, sums: np.ndarray) -> float:
        from saccade.score.labels import accuracy

        return accuracy(sums.reshape(3, -1))


class MacroF1(LabelMetric):
    name = "f1"
    title = "F1"
    signature = "mean over classes"
    outputs = (LABEL, TAGS)
    order = 21

    def compute_from_sums(self, sums: np.ndarray) -> float:
        from saccade.score.labels import macro_f1

        return macro_f1(sums.reshape(3, -1))


class Matthews(LabelMetric):
    name = "matthews"
    title = "Matthews"
    signature = "correlation of classes, times 100"
    outputs = (LABEL,)
    order = 22

    def compute_from_sums(self, sums: np.ndarray) -> float:
        from saccade.score.labels import matthews

        return matthews(sums.reshape(3, -1))


class Correlation(LabelMetric):
    """A correlation, which numbers that are all equal do not have."""

    def score(self, predictions: Predictions) -> Score:
        sides = {"outputs": predictions.outputs, "references": predictions.references}
        for side, texts in sides.items():
            if len({parse_number(text) for text in texts}) < 2:
                reason = f"no correlation: all {len(texts)} {side} are {texts[0]}"
                return replace(super().score(predictions), undefined=reason)
        return super().score(predictions)


class Pearson(Correlation):
    name = "pearson"
    title = "Pearson"
    signature = "correlation of numbers, times 100"
    outputs = (NUMBER,)
    order = 23

    def compute_from_sums(self, sums: np.ndarray) -> float:
        from saccade.score.labels import compute_correlation

        return compute_correlation(sums[:6])


class Spearman(Correlation):
    name = "spearman"
    title = "Spearman"
    signature = "correlation of ranks, times 100"
    outputs = (NUMBER,)
    order = 24

    def compute_from_sums(self, sums: np.ndarray) -> float:
        from saccade.score.labels import compute_correlation

        return compute_correlation(sums[6:])


RANKED_LABELS = "ranked labels"  # outputs: for each example, its most probable labels


class TopK(Metric):
    """Top-k accuracy."""

    outputs = (RANKED_LABELS,)
    order = 25

    def __init__(self, k: int) -> None:
        self.k, self.name, self.title = k, f"top-{k}", f"top-{k} %"
        self.signature = f"share of labels among the best {k}"

    def compute(self, predictions: Predictions) -> float:
        hits = [label in best for label, best in zip(predictions.references, predictions.outputs, strict=True)]
        return 100 * sum(hits) / len(hits)


TOP_5 = TopK(5)
METRICS = (Accuracy(), MacroF1(), Matthews(), Pearson(), Spearman(), TOP_5)
