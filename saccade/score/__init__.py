"""Metrics of outputs against references, evaluations of a model, and comparisons of runs."""
