"""Metrics: each module has its objects in METRICS. A metric of your own subclasses one of the classes here."""

from saccade.config.metric import MeanMetric, Metric, Predictions, Score, SumMetric

__all__ = ["MeanMetric", "Metric", "Predictions", "Score", "SumMetric"]
