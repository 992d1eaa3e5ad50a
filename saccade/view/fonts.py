"""Fonts for labels in any script: what DejaVu Sans lacks is looked for in the fonts of the machine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from matplotlib import font_manager

from saccade.view.labels import code

DIRECTIONS = frozenset("\u200e\u200f\u2066\u2067\u2068\u2069")  # need no glyph: layout takes them out
FIRST = "DejaVu Sans"  # comes with matplotlib, so it is there on every machine
NOT_FOR_TEXT = (
    "cm",
    "STIX",
    "Last Resort",
)  # fonts of matplotlib in TeX's encodings, and one that draws every letter as a box


def families_for(texts: Iterable[str]) -> list[str]:
    """Font families in the order of preference, enough for all characters that some font here has."""
    missing = {ord(c) for text in texts for c in text if c not in DIRECTIONS} - characters(FIRST)
    families = [FIRST]
    for family in _installed() if missing else ():
        found = missing & characters(family)
        if found:
            families.append(family)
            missing -= found
        if not missing:
            break
    return families


def drawable(text: str, *, families: Iterable[str]) -> str:
    """The text with each character that none of the families has written as its code."""
    known = [characters(family) for family in families]
    return "".join(c if c in DIRECTIONS or any(ord(c) in font for font in known) else code(c) for c in text)


@cache
def characters(family: str) -> frozenset[int]:
    """The code points that the regular face of a family can draw."""
    try:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)
        font = font_manager.get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError, ValueError):  # a font file that is gone, or that cannot be read
        return frozenset()


@cache
def _installed() -> tuple[str, ...]:
    """Families with a regular face, so that no light or condensed one is taken by chance."""
    fonts = font_manager.fontManager.ttflist
    names = {font.name for font in fonts if font.style == "normal" and font.weight in (400, "normal", "regular")}
    return tuple(sorted(name for name in names if not name.startswith(NOT_FOR_TEXT)))
