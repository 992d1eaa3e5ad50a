"""Metrics of the server, for Prometheus; of several workers, the sums, through files in a folder that they share."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from saccade.predict.engines.engine import EngineTally

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # upper bounds of buckets
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # names that folder; prometheus_client reads it when it is imported
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

disable_created_metrics()  # a second series for each counter, which says when it was created


class Metrics:
    """Counters, gauges and histograms of one server; thread-safe."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "saccade_requests", "Answered requests, by route and status code.", ("route", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "saccade_request_seconds",
            "Seconds from the last byte of the request to the last byte of the response, by route.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self.batch_texts = Histogram(
            "saccade_batch_texts",
            "Inputs per decoded batch, by model.",
            ("model",),
            buckets=BATCH_SIZES,
            registry=registry,
        )
        self.texts = Counter("saccade_texts", "Decoded inputs, by model.", ("model",), registry=registry)
        self.decoded_batches = Counter(
            "saccade_decoded_batches", "Decoded batches, by model and engine.", ("model", "engine"), registry=registry
        )
        self.engine_fallbacks = Counter(
            "saccade_engine_fallbacks",
            "Batches that an engine declined, by model, engine and reason.",
            ("model", "engine", "reason"),
            registry=registry,
        )
        self.waiting_requests = Gauge(
            "saccade_waiting_requests",
            "Requests waiting for a model.",
            ("model",),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.requests_in_flight = Gauge(
            "saccade_requests_in_flight", "Requests being processed.", registry=registry, multiprocess_mode="livesum"
        )

    def count_engines(self, tally: EngineTally, model: str) -> None:
        """Count which engines decoded since the last call, and why others did not."""
        taken = tally.pop_counts()
        for engine, count in taken.decoded.items():
            self.decoded_batches.labels(model, engine).inc(count)
        for (engine, reason), count in taken.declined.items():
            self.engine_fallbacks.labels(model, engine, reason).inc(count)

    def render(self) -> bytes:
        """Format all metrics in the Prometheus text format."""
        if MULTIPROCESS_VARIABLE not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry)


def forget_process(folder: str, pid: int) -> None:
    """Remove the gauges of a worker that has ended from the sums; what it has counted stays in them."""
    mark_process_dead(pid, folder)
