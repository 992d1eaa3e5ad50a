"""Token labels in any script: readable forms, grapheme clusters, and visual order of bidirectional text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saccade.errors import SaccadeError


def check_map(weights: ArrayLike, *, rows: Sequence[str], columns: Sequence[str], name: str = "weights") -> NDArray:
    """Return a map as a float array (rows, columns); raise if it does not fit its labels or is not finite."""
    array = np.asarray(weights, dtype=float)
    if array.shape != (len(rows), len(columns)) or array.size == 0:
        raise SaccadeError(
            f"{name} must be (rows, columns) = ({len(rows)}, {len(columns)}) and not empty, got {array.shape}; "
            "give one label for each row and column"
        )
    if not np.isfinite(array).all():
        raise SaccadeError(f"{name} must be finite, got NaN or infinity; check for a fully masked row")
    return array


def to_readable(label: str) -> str:
    """Make spaces, lone combining marks and control characters of a label visible."""
    if label.isspace():
        return "␣"
    kinds = {unicodedata.category(character) for character in label}
    if kinds and kinds <= {"Mn", "Mc", "Me"}:
        return "◌" + label
    if kinds and kinds <= {"Cc", "Cf"}:
        return "".join(map(format_code_point, label))
    visible = (character for character in label if unicodedata.category(character) not in ("Cc", "Cf"))
    return "".join(" " if character.isspace() else character for character in visible)


def escape_control_characters(text: str) -> str:
    """Replace control characters, which a terminal would interpret, by their code points."""
    return "".join(format_code_point(x) if unicodedata.category(x) == "Cc" and x not in "\n\t" else x for x in text)


def format_code_point(character: str) -> str:
    """Format a character as its code point, such as U+00E9."""
    return f"U+{ord(character):04X}"


def split_clusters(text: str) -> list[str]:
    """Split a text into characters, each with its combining marks."""
    clusters: list[str] = []
    for character in text:
        if clusters and unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf"):
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters


def shorten(text: str, *, max_length: int) -> str:
    """Truncate a text to `max_length` characters, the last of which is an ellipsis."""
    clusters = split_clusters(text)
    return text if len(clusters) <= max_length else "".join(clusters[: max_length - 1]) + "…"


def format_pair(source: str, target: str) -> str:
    """Format `source → target` left to right, while each side keeps its own text direction."""
    return f"\u200e\u2068{source}\u2069 → \u2068{target}\u2069"  # invisible: left-to-right mark, two bidi isolates


def compute_visual_order(labels: Sequence[str]) -> list[int]:
    """Compute the visual order of labels, left to right, by the Unicode bidirectional algorithm.

    A label is one character to it. There are no embeddings, and brackets are not paired (rule N0).
    """
    classes = [_get_bidi_class(label) for label in labels]
    base = next((int(kind != "L") for kind in classes if kind in ("L", "R", "AL")), 0)
    levels = _compute_levels(classes, base)
    order = list(range(len(labels)))
    for level in range(max(levels, default=0), 0, -1):  # rule L2: reverse every run of this level or higher
        start = 0
        while start < len(order):
            end = start
            while end < len(order) and levels[order[end]] >= level:
                end += 1
            order[start:end] = order[start:end][::-1]
            start = end + 1
    return order


def _get_bidi_class(label: str) -> str:
    """Get the bidi class of the first letter, else of the first character; `<end>` separates runs of text (B)."""
    if len(label) > 2 and label.startswith("<") and label.endswith(">"):
        return "B"
    classes = [unicodedata.bidirectional(character) or "ON" for character in label] or ["ON"]
    return next((kind for kind in classes if kind in ("L", "R", "AL")), classes[0])


def _compute_levels(classes: Sequence[str], base: int) -> list[int]:
    """Compute embedding levels: rules W1-W7 (weak), N1-N2 (neutral) and I1-I2 (implicit)."""
    kinds = _resolve_weak_classes(classes, base)
    base_class = "R" if base else "L"
    level = {"L": 2 * base, "R": 1, "EN": 2, "AN": 2}
    levels = [0] * len(kinds)
    start = 0
    while start < len(kinds):
        end = start
        while end < len(kinds) and kinds[end] not in level:
            end += 1
        before = _get_strong_class(kinds[start - 1]) if start else base_class
        after = _get_strong_class(kinds[end]) if end < len(kinds) else base_class
        levels[start:end] = [level[before] if before == after else base] * (end - start)
        if end < len(kinds):
            levels[end] = level[kinds[end]]
        start = end + 1
    return [base if kind == "B" else level for kind, level in zip(classes, levels, strict=True)]


def _get_strong_class(kind: str) -> str:
    return "L" if kind == "L" else "R"  # numbers count as right-to-left beside neutrals


def _resolve_weak_classes(classes: Sequence[str], base: int) -> list[str]:
    """Apply rules W1-W7 for digits, their separators and combining marks; L, R, EN, AN and neutrals remain."""
    kinds: list[str] = []
    strong = "R" if base else "L"
    letters: list[str] = []  # the last strong class at each position
    for kind in classes:
        kind = (kinds[-1] if kinds else strong) if kind == "NSM" else kind
        strong = kind if kind in ("L", "R", "AL") else strong
        kinds.append("AN" if kind == "EN" and strong == "AL" else kind)
        letters.append(strong)
    for i in range(1, len(kinds) - 1):
        same = kinds[i - 1] == kinds[i + 1]
        if same and (kinds[i], kinds[i - 1]) in (("ES", "EN"), ("CS", "EN"), ("CS", "AN")):
            kinds[i] = kinds[i - 1]
    for i in [*range(1, len(kinds)), *range(len(kinds) - 2, -1, -1)]:  # currency and percent signs go with their number
        neighbour = kinds[i - 1] if i else ""
        following = kinds[i + 1] if i + 1 < len(kinds) else ""
        if kinds[i] == "ET" and "EN" in (neighbour, following):
            kinds[i] = "EN"
    kinds = ["L" if kind == "EN" and strong == "L" else kind for kind, strong in zip(kinds, letters, strict=True)]
    return ["R" if kind == "AL" else kind for kind in kinds]
