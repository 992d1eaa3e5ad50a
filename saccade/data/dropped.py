"""What a row of a store is called, and what is told of those that were left out."""

from __future__ import annotations

from saccade.data.corpus_part import Part
from saccade.data.route_store import SIDES as ROUTES
from saccade.data.store import Store

WHAT = {  # a row, by its sides
    ("source", "target"): "pair",
    ("source", "label"): "text",
    ("target",): "document",
    ("source",): "file",
    ("source", "question", "target"): "question",
    ("source", "question", "label"): "question",
    ROUTES: "route",
}


def notes_of(store: Store, parts: list[Part], limit: int | None) -> list[str]:
    """What was dropped and why, with the place of the first one, under the names that the files have now."""
    what = WHAT[store.sides]
    total = f"{store.dropped.total:,} {what}{'s' if store.dropped.total > 1 else ''}"
    empty = "with an empty side" if len(store.sides) > 1 else "without a text"
    reasons = {empty: store.dropped.empty, f"longer than {limit or 0:,} tokens": store.dropped.long}
    return [
        f"dropped {found[0]:,} of {total} {reason}; first at {parts[found[1]].name} line {found[2]}"
        for reason, found in reasons.items()
        if found
    ]
