"""Communication between processes in a profile, and the share of it that is hidden behind computation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

Interval = tuple[float, float]  # begin and end
COLLECTIVES = ("nccl", "gloo:")  # how the names of kernels of NCCL and of operations of gloo begin
COMPUTATIONS = ("aten::",)  # how the names of operators begin that compute on a CPU


def measure_communication(events: Iterable[Any], *, steps: int) -> dict[str, Any]:
    """Return the milliseconds of collective operations in a step, the share that is hidden, and each operation.

    `events` are those of torch's profiler over some steps. Communication is hidden while kernels of the GPU, or
    operators on a CPU, compute at the same time; waiting for other processes counts as communication. {} without any.
    """
    events = list(events)
    on_device = any(event.device_type.name == "CUDA" for event in events)
    collectives: list[tuple[str, Interval]] = []
    computations: list[Interval] = []
    for event in events:
        span = (event.time_range.start, event.time_range.end)
        if (event.device_type.name == "CUDA") != on_device or (on_device and event.is_user_annotation):
            continue  # annotations of a GPU's time line are spans of the host; operations of gloo are annotations
        if event.name.startswith(COLLECTIVES):
            collectives.append((event.name, span))
        elif on_device or event.name.startswith(COMPUTATIONS):
            computations.append(span)
    if not collectives:
        return {}
    busy = merge_intervals(span for _, span in collectives)
    hidden = measure_intersection(busy, merge_intervals(computations))
    total = sum(end - begin for begin, end in busy)
    spent, calls = defaultdict[str, float](float), Counter(name for name, _ in collectives)
    for name, (begin, end) in collectives:
        spent[name] += end - begin
    operations = [
        {"name": name, "ms": time / 1000 / steps, "calls": calls[name] / steps}
        for name, time in sorted(spent.items(), key=lambda item: -item[1])
    ]
    return {"ms": total / 1000 / steps, "hidden": hidden / total if total else 0.0, "operations": operations}


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as sorted ones that do not overlap."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def measure_intersection(first: list[Interval], second: list[Interval]) -> float:
    """Return the length of the intersection of two lists of sorted intervals that do not overlap."""
    total, one, two = 0.0, 0, 0
    while one < len(first) and two < len(second):
        total += max(0.0, min(first[one][1], second[two][1]) - max(first[one][0], second[two][0]))
        if first[one][1] < second[two][1]:
            one += 1
        else:
            two += 1
    return total
