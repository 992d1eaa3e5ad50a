"""The attention document: attention maps and their labels as plain data for JSON, the page, the server and notebooks.

`labels` are the tokens of the input ("source"), of the output ("target"), and of the writer's (decoder's) own input at
each position, which is the output shifted by one ("seen"). A map names its rows and columns by these keys. `words`
groups tokens into words. Step i of `steps` describes decoding step i, which is row i of the writer's maps. Where
steps lead through a map, `route` has its places `items` [x, y, name], its edges `ways` [x, y, x, y, floor], the
`colours` of the floors, and `poses` [x, y, degrees] at each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saccade.view.maps import AttentionMap
from saccade.view.statistics import compute_statistics
from saccade.view.words import Groups

SCHEMA = 1
WEIGHT_DIGITS = 7  # decimal places, as many as float32 has

Document = dict[str, Any]


def build_document(
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
    """Build the document; `texts` are the input, None if there is none, and the output.

    Weights stay float32 arrays; `to_lists` converts them for JSON.
    """
    result: Document = {
        "schema": SCHEMA,
        "title": title,
        "input": texts[0],
        "output": texts[1],
        "labels": {name: list(side) for name, side in labels.items()},
        "words": {name: [list(group) for group in groups] for name, groups in (words or {}).items()},
        "maps": [describe_map(entry) for entry in maps],
        "steps": [dict(step) for step in steps],
        "background": None if background is None else dict(background),
        "statistics": {entry.address: compute_statistics(entry.weights) for entry in maps},
    }
    return result if other is None else {**result, "other": other}


def describe_map(entry: AttentionMap) -> dict[str, Any]:
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


def to_lists(document: Document) -> Document:
    """Convert the weights to nested lists, rounded to seven decimal places, for JSON."""
    rounded = [{**entry, "weights": _round(entry["weights"])} for entry in document["maps"]]
    converted = {**document, "maps": rounded}
    return {**converted, "other": to_lists(document["other"])} if "other" in document else converted


def _round(weights: Any) -> list:
    return np.asarray(weights, dtype=np.float64).round(WEIGHT_DIGITS).tolist()
