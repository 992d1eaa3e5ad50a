"""Metrics of outputs against references, evaluations of a model, and comparisons of runs."""

MAX_EMBEDDED_PAIRS = 1_000  # of a synthetic corpus (embedded:NAME), which for training is much larger: all are decoded
