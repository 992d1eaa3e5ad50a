"""Metrics of the server in the Prometheus text format."""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from saccade.predict.engines.engine import EngineTally

Labels = tuple[tuple[str, str], ...]

HELP = {  # name: type, help text
    "saccade_requests_total": ("counter", "Answered requests, by route and status code."),
    "saccade_request_seconds": (
        "histogram",
        "Seconds from the last byte of the request to the last byte of the response, by route.",
    ),
    "saccade_batch_texts": ("histogram", "Inputs per decoded batch, by model."),
    "saccade_texts_total": ("counter", "Decoded inputs, by model."),
    "saccade_decoded_batches_total": ("counter", "Decoded batches, by model and engine."),
    "saccade_engine_fallbacks_total": ("counter", "Batches that an engine declined, by model, engine and reason."),
    "saccade_waiting_requests": ("gauge", "Requests waiting for a model."),
    "saccade_requests_in_flight": ("gauge", "Requests being processed."),
}
BUCKET_BOUNDS = {  # upper bounds of histogram buckets
    "saccade_request_seconds": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "saccade_batch_texts": (1, 2, 4, 8, 16, 32, 64, 128),
}


class Metrics:
    """Thread-safe counters, gauges and histograms."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, dict[Labels, float]] = {name: {} for name in HELP}
        self.buckets: dict[str, dict[Labels, list[int]]] = {name: {} for name in BUCKET_BOUNDS}

    def increment(self, name: str, labels: Mapping[str, str], by: float = 1) -> None:
        key = tuple(labels.items())
        with self.lock:
            self.values[name][key] = self.values[name].get(key, 0) + by

    def count_engines(self, tally: EngineTally, model: str) -> None:
        """Count which engines decoded since the last call, and why others did not."""
        taken = tally.pop_counts()
        for engine, count in taken.decoded.items():
            self.increment("saccade_decoded_batches_total", {"model": model, "engine": engine}, count)
        for (engine, reason), count in taken.declined.items():
            labels = {"model": model, "engine": engine, "reason": reason}
            self.increment("saccade_engine_fallbacks_total", labels, count)

    def set_gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        with self.lock:
            self.values[name][tuple(labels.items())] = value

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        key = tuple(labels.items())
        with self.lock:
            counts = self.buckets[name].setdefault(key, [0] * (len(BUCKET_BOUNDS[name]) + 1))
            counts[bisect_left(BUCKET_BOUNDS[name], value)] += 1
            self.values[name][key] = self.values[name].get(key, 0) + value

    def render(self) -> str:
        """Format all metrics in the Prometheus text format."""
        with self.lock:
            return "".join(f"{line}\n" for name in HELP for line in self._lines(name))

    def _lines(self, name: str) -> Iterator[str]:
        kind, description = HELP[name]
        yield f"# HELP {name} {description}"
        yield f"# TYPE {name} {kind}"
        for key, value in self.values[name].items():
            if kind != "histogram":
                yield f"{name}{format_labels(key)} {value:.15g}"
                continue
            counts = list(accumulate(self.buckets[name][key]))
            for bound, count in zip((*BUCKET_BOUNDS[name], float("inf")), counts, strict=True):
                edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield f"{name}_bucket{format_labels((*key, ('le', edge)))} {count}"
            yield f"{name}_sum{format_labels(key)} {value:.6g}"
            yield f"{name}_count{format_labels(key)} {counts[-1]}"


def format_labels(labels: Labels) -> str:
    """Format labels as `{model="a"}` with escaped values; empty without labels."""
    if not labels:
        return ""
    pairs = (f'{name}="{escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
