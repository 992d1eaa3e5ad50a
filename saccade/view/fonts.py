"""Fonts for labels in any script: characters that DejaVu Sans lacks are taken from the installed fonts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from saccade.plotting import font_manager
from saccade.view.labels import format_code_point

DIRECTION_MARKS = frozenset("\u200e\u200f\u2066\u2067\u2068\u2069")  # need no glyph: the layout removes them
DEFAULT_FAMILY = "DejaVu Sans"  # comes with matplotlib
# Prefixes of matplotlib's fonts in TeX encodings, and of one that draws every character as a box.
NON_TEXT_FAMILIES = ("cm", "STIX", "Last Resort")


def find_families(texts: Iterable[str]) -> list[str]:
    """Find font families, in order of preference, that cover all characters which any installed font has."""
    missing = {ord(c) for text in texts for c in text if c not in DIRECTION_MARKS} - get_code_points(DEFAULT_FAMILY)
    families = [DEFAULT_FAMILY]
    for family in _list_installed() if missing else ():
        covered = missing & get_code_points(family)
        if covered:
            families.append(family)
            missing -= covered
        if not missing:
            break
    return families


def replace_missing_glyphs(text: str, *, families: Iterable[str]) -> str:
    """Replace each character that none of the families has by its code point."""
    known = [get_code_points(family) for family in families]
    return "".join(
        c if c in DIRECTION_MARKS or any(ord(c) in font for font in known) else format_code_point(c) for c in text
    )


@cache
def get_code_points(family: str) -> frozenset[int]:
    """Get the code points of the regular face of a family."""
    try:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)
        font = font_manager.get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError, ValueError):  # a font file that is missing or unreadable
        return frozenset()


@cache
def _list_installed() -> tuple[str, ...]:
    """List the families with a regular face, so that no light or condensed face is used."""
    fonts = font_manager.fontManager.ttflist
    names = {font.name for font in fonts if font.style == "normal" and font.weight in (400, "normal", "regular")}
    return tuple(sorted(name for name in names if not name.startswith(NON_TEXT_FAMILIES)))
