"""The attention document: what was looked at, as plain data for JSON, for the page, for a server and for notebooks.

`labels` are the tokens: of what was read ("source"), of what was written ("target"), and what the writer had before it
at each place ("seen"). Rows and columns of a map are named after them. `words` says which tokens make up one word.
Step i of `steps` is about row i of the writer's maps. Where somebody walked, `route` has the world and a pose for each
action (see `saccade.view.route`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saccade.view.maps import AttentionMap
from saccade.view.statistics import statistics
from saccade.view.words import Groups

SCHEMA = 1
DIGITS = 7  # behind the point, as many as float32 has

Document = dict[str, Any]


def document(
    maps: Sequence[AttentionMap],
    labels: Mapping[str, Sequence[str]],
    *,
    title: str,
    texts: tuple[str | None, str],
    words: Mapping[str, Groups] | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
    background: Mapping[str, Any] | None = None,
    other: Document | None = None,
) -> Document:
    """The document of maps and labels; `texts` are what was read, where anything was, and what was written.

    Weights are float32 arrays; `listed` makes numbers of them.
    """
    made: Document = {
        "schema": SCHEMA,
        "title": title,
        "input": texts[0],
        "output": texts[1],
        "labels": {name: list(side) for name, side in labels.items()},
        "words": {name: [list(group) for group in groups] for name, groups in (words or {}).items()},
        "maps": [described(entry) for entry in maps],
        "steps": [dict(step) for step in steps],
        "background": None if background is None else dict(background),
        "statistics": {entry.address: statistics(entry.weights) for entry in maps},
    }
    return made if other is None else {**made, "other": other}


def described(entry: AttentionMap) -> dict[str, Any]:
    return {
        "address": entry.address,
        "name": entry.name,
        "part": entry.part,
        "layer": entry.layer,
        "rows": entry.rows,
        "columns": entry.columns,
        "heads": entry.heads,
        "shape": list(entry.weights.shape),
        "weights": entry.weights,
    }


def listed(made: Document) -> Document:
    """The document with weights as nested lists, rounded to seven digits behind the point: what JSON can hold."""
    rounded = [{**entry, "weights": _numbers(entry["weights"])} for entry in made["maps"]]
    whole = {**made, "maps": rounded}
    return {**whole, "other": listed(made["other"])} if "other" in made else whole


def _numbers(weights: Any) -> list:
    return np.asarray(weights, dtype=np.float64).round(DIGITS).tolist()
