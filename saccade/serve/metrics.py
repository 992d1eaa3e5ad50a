"""Numbers about a running server, in the text format that Prometheus reads."""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from saccade.predict.engines.engine import EngineTally

Labels = tuple[tuple[str, str], ...]

HELP = {  # name: kind, and what it says
    "saccade_requests_total": ("counter", "Requests that were answered, by route and status code."),
    "saccade_request_seconds": ("histogram", "Time from the whole request to the whole answer, by route."),
    "saccade_batch_texts": ("histogram", "Texts that were decoded together, by model."),
    "saccade_texts_total": ("counter", "Texts that were answered, by model."),
    "saccade_decoded_batches_total": ("counter", "Batches that were decoded, by model and engine."),
    "saccade_engine_fallbacks_total": ("counter", "Batches that an engine declined, by model, engine and reason."),
    "saccade_waiting_requests": ("gauge", "Requests that wait for a model."),
    "saccade_requests_in_flight": ("gauge", "Requests that are being answered."),
}
BOUNDS = {  # of histograms: at most so much
    "saccade_request_seconds": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "saccade_batch_texts": (1, 2, 4, 8, 16, 32, 64, 128),
}


class Metrics:
    """Counters, gauges and histograms; every thread may change them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, dict[Labels, float]] = {name: {} for name in HELP}
        self.buckets: dict[str, dict[Labels, list[int]]] = {name: {} for name in BOUNDS}

    def count(self, name: str, labels: Mapping[str, str], by: float = 1) -> None:
        key = tuple(labels.items())
        with self.lock:
            self.values[name][key] = self.values[name].get(key, 0) + by

    def count_engines(self, tally: EngineTally, model: str) -> None:
        """Which engines decoded since the tally was last taken, and why others did not."""
        taken = tally.take()
        for engine, count in taken.decoded.items():
            self.count("saccade_decoded_batches_total", {"model": model, "engine": engine}, count)
        for (engine, reason), count in taken.declined.items():
            labels = {"model": model, "engine": engine, "reason": reason}
            self.count("saccade_engine_fallbacks_total", labels, count)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        with self.lock:
            self.values[name][tuple(labels.items())] = value

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        key = tuple(labels.items())
        with self.lock:
            counts = self.buckets[name].setdefault(key, [0] * (len(BOUNDS[name]) + 1))
            counts[bisect_left(BOUNDS[name], value)] += 1
            self.values[name][key] = self.values[name].get(key, 0) + value

    def text(self) -> str:
        """All of them, as of now."""
        with self.lock:
            return "".join(f"{line}\n" for name in HELP for line in self._lines(name))

    def _lines(self, name: str) -> Iterator[str]:
        kind, says = HELP[name]
        yield f"# HELP {name} {says}"
        yield f"# TYPE {name} {kind}"
        for key, value in self.values[name].items():
            if kind != "histogram":
                yield f"{name}{shown(key)} {value:.15g}"
                continue
            counts = list(accumulate(self.buckets[name][key]))
            for bound, count in zip((*BOUNDS[name], float("inf")), counts, strict=True):
                edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield f"{name}_bucket{shown((*key, ('le', edge)))} {count}"
            yield f"{name}_sum{shown(key)} {value:.6g}"
            yield f"{name}_count{shown(key)} {counts[-1]}"


def shown(labels: Labels) -> str:
    """`{model="a"}`, with what Prometheus wants escaped."""
    if not labels:
        return ""
    pairs = (f'{name}="{escaped(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
