"""Loggers: copies of what metrics.jsonl has, for TensorBoard, Weights & Biases and MLflow."""
