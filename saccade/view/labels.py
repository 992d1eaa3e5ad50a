"""Labels of any script: made readable, cut into characters, and put in the order in which they are written."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saccade.errors import SaccadeError


def checked(weights: ArrayLike, *, rows: Sequence[str], columns: Sequence[str], name: str = "weights") -> NDArray:
    """The map as a float array, after a check that it fits its labels."""
    array = np.asarray(weights, dtype=float)
    if array.shape != (len(rows), len(columns)) or array.size == 0:
        raise SaccadeError(
            f"{name} must be (rows, columns) = ({len(rows)}, {len(columns)}) and not empty, got {array.shape}; "
            "give one label for each row and column"
        )
    if not np.isfinite(array).all():
        raise SaccadeError(f"{name} must be finite, got NaN or infinity; look for a row that attends to nothing")
    return array


def readable(label: str) -> str:
    """The label with everything invisible made visible: spaces, lone combining marks, control characters."""
    if label.isspace():
        return "␣"
    kinds = {unicodedata.category(character) for character in label}
    if kinds and kinds <= {"Mn", "Mc", "Me"}:
        return "◌" + label
    if kinds and kinds <= {"Cc", "Cf"}:
        return "".join(map(code, label))
    seen = (character for character in label if unicodedata.category(character) not in ("Cc", "Cf"))
    return "".join(" " if character.isspace() else character for character in seen)


def printable(text: str) -> str:
    """The text with codes in the place of control characters, some of which a terminal would obey."""
    return "".join(code(x) if unicodedata.category(x) == "Cc" and x not in "\n\t" else x for x in text)


def code(character: str) -> str:
    """How a character is shown that cannot be drawn."""
    return f"U+{ord(character):04X}"


def clusters(text: str) -> list[str]:
    """The text cut into characters, each with the combining marks that belong to it."""
    cut: list[str] = []
    for character in text:
        if cut and unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf"):
            cut[-1] += character
        else:
            cut.append(character)
    return cut


def shortened(text: str, *, most: int) -> str:
    """At most `most` characters, the last of them an ellipsis where something was cut off."""
    cut = clusters(text)
    return text if len(cut) <= most else "".join(cut[: most - 1]) + "…"


def from_to(read: str, written: str) -> str:
    """`read → written`, where each side keeps its own direction and the arrow points to what was written."""
    return f"\u200e\u2068{read}\u2069 → \u2068{written}\u2069"  # invisible marks: left to right, two isolated texts


def visual_order(labels: Sequence[str]) -> list[int]:
    """The indices of `labels` from left to right, as their text is written (Unicode Annex 9, without embeddings)."""
    classes = [_bidi_class(label) for label in labels]
    base = next((int(kind != "L") for kind in classes if kind in ("L", "R", "AL")), 0)
    levels = _levels(classes, base)
    order = list(range(len(labels)))
    for level in range(max(levels, default=0), 0, -1):  # rule L2: turn every run of this level or higher round
        start = 0
        while start < len(order):
            end = start
            while end < len(order) and levels[order[end]] >= level:
                end += 1
            order[start:end] = order[start:end][::-1]
            start = end + 1
    return order


def _bidi_class(label: str) -> str:
    """The class of the first letter, else of the first character; `<end>` belongs to no run of text."""
    if len(label) > 2 and label.startswith("<") and label.endswith(">"):
        return "B"
    classes = [unicodedata.bidirectional(character) or "ON" for character in label] or ["ON"]
    return next((kind for kind in classes if kind in ("L", "R", "AL")), classes[0])


def _levels(classes: Sequence[str], base: int) -> list[int]:
    """Embedding levels: rules W1-W7 (weak), N1-N2 (neutral) and I1-I2 (implicit)."""
    kinds = _without_weak(classes, base)
    around = "R" if base else "L"
    level = {"L": 2 * base, "R": 1, "EN": 2, "AN": 2}
    levels = [0] * len(kinds)
    start = 0
    while start < len(kinds):
        end = start
        while end < len(kinds) and kinds[end] not in level:
            end += 1
        before = _strong(kinds[start - 1]) if start else around
        after = _strong(kinds[end]) if end < len(kinds) else around
        levels[start:end] = [level[before] if before == after else base] * (end - start)
        if end < len(kinds):
            levels[end] = level[kinds[end]]
        start = end + 1
    return [base if kind == "B" else level for kind, level in zip(classes, levels, strict=True)]


def _strong(kind: str) -> str:
    return "L" if kind == "L" else "R"  # numbers count as right-to-left beside neutrals


def _without_weak(classes: Sequence[str], base: int) -> list[str]:
    """L, R, EN, AN and neutrals: what is left after the rules for digits, their separators and combining marks."""
    kinds: list[str] = []
    strong = "R" if base else "L"
    letters: list[str] = []  # the last strong class at each place
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
