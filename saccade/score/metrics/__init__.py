"""Metrics: functions from outputs and references to a score with its signature; none of them runs a model."""
