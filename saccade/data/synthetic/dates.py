"""Dates as people write them in 31 languages, with spelling mistakes, and what they mean: 2024-03-05.

The patterns and names are those of CLDR through babel. Left out: two-digit years, and numbers for months except year
first or with dots between (5.3.2024 is the fifth of March wherever dots are written), so that every text means one day.
"""

from __future__ import annotations

import random
from calendar import isleap
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from functools import cache
from hashlib import sha256
from typing import NamedTuple

# Scripts that a common font draws: Latin, Cyrillic, Greek, Hebrew, Arabic, Armenian, Georgian. Not here: Croatian, in
# which listopad is October; it is November in Polish and Czech.
LANGUAGES = (
    "en", "de", "fr", "es", "pt", "it", "nl", "sv", "da", "nb", "fi", "et", "lv", "lt", "pl", "cs", "hu", "ro", "ca",
    "tr", "id", "ru", "uk", "bg", "sr", "el", "he", "ar", "fa", "hy", "ka",
)  # fmt: skip
COUNTRIES = {"en": ("en_US", "en_GB")}  # whose habits differ
SKELETONS = ("yMMMd", "yMMMMd", "yMMMEd", "yMMMMEEEEd")
YEARS = range(1000, 3000)
NOISE = 0.27  # share of examples with a mistake; a little less comes out, as names without letters to spare stay whole
SHORTEST = 5  # letters of a name that may lose, swap or double one; shorter ones might become another month
LAST_CASED = 0x1C80  # above: capitals that fonts lack (Georgian)


class Piece(NamedTuple):
    """A part of a pattern: fixed text, or a number, or a name out of a list."""

    field: str  # "text", "d", "m", "y", "month" or "weekday"
    width: int = 1
    text: str = ""
    names: tuple[str, ...] = ()


Pattern = tuple[Piece, ...]


def dates(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[str, str]]:
    """Pairs of a written date and its ISO form; the years of `heldout` never occur without it."""
    rng = random.Random(f"dates {seed}")
    years = [year for year in YEARS if is_heldout(year) == heldout]
    languages = [patterns(language) for language in LANGUAGES]
    mistakes = _mistakes()
    for _ in range(count):
        year = rng.choice(years)
        day = date.fromordinal(date(year, 1, 1).toordinal() + int(rng.random() * (365 + isleap(year))))
        pattern = rng.choice(rng.choice(languages))
        yield write(day, pattern, mistakes, rng if rng.random() < NOISE else None), day.isoformat()


def is_heldout(year: int) -> bool:
    """About one year in ten, scattered by a hash."""
    return sha256(str(year).encode()).digest()[0] % 10 == 0


def write(day: date, pattern: Pattern, mistakes: dict[str, list[str]], rng: random.Random | None = None) -> str:
    """The date in one pattern; with `rng`, one of its names has a spelling mistake."""
    parts = [_render(piece, day) for piece in pattern]
    if rng:
        places = [i for i, piece in enumerate(pattern) if piece.names and mistakes[parts[i]]]
        if places:
            place = rng.choice(places)
            parts[place] = rng.choice(mistakes[parts[place]])
    return "".join(parts)


def _render(piece: Piece, day: date) -> str:
    match piece.field:
        case "text":
            return piece.text
        case "month":
            return piece.names[day.month - 1]
        case "weekday":
            return piece.names[day.weekday()]
        case "d":
            return f"{day.day:0{piece.width}}"
        case "m":
            return f"{day.month:0{piece.width}}"
    return str(day.year)


@cache
def patterns(language: str) -> list[Pattern]:
    """The ways to write a date in a language, each once, in a fixed order."""
    from babel import Locale

    found: dict[Pattern, None] = {}
    for name in COUNTRIES.get(language, (language,)):
        locale = Locale.parse(name)
        texts = [locale.date_formats[length].pattern for length in ("full", "long", "medium")]
        texts += [locale.datetime_skeletons[key].pattern for key in SKELETONS if key in locale.datetime_skeletons]
        for text in texts:
            pattern = _parse(text, locale)
            if pattern and _is_clear(pattern):
                found[pattern] = None
    return list(found)


def _parse(text: str, locale: object) -> Pattern | None:
    """A CLDR pattern as pieces; None where it has a field that we do not write."""
    from babel.dates import tokenize_pattern

    pieces = []
    for _, value in tokenize_pattern(text):
        if isinstance(value, str):
            pieces.append(Piece("text", text=_plain(value)))
            continue
        letter, width = str(value[0]), int(value[1])
        if letter in "d" or (letter == "y" and width != 2) or (letter in "ML" and width <= 2):
            pieces.append(Piece({"d": "d", "y": "y"}.get(letter, "m"), width))
        elif letter in "ML" and width in (3, 4):
            pieces.append(Piece("month", names=_names(locale, "months", letter == "L", width)))
        elif letter in "Ec" and width <= 4:
            pieces.append(Piece("weekday", names=_names(locale, "days", letter == "c", width)))
        else:
            return None
    return tuple(pieces)


def _names(locale: object, what: str, standalone: bool, width: int) -> tuple[str, ...]:
    tables = getattr(locale, what)["stand-alone" if standalone else "format"]
    names = tables["wide" if width == 4 else "abbreviated"]
    keys = range(7) if what == "days" else range(1, 13)
    return tuple(_plain(names[key]) for key in keys)


def _plain(text: str) -> str:
    """Ordinary spaces, and no invisible marks of joining and writing direction."""
    return text.translate({0x202F: " ", 0xA0: " ", 0x200C: "", 0x200E: "", 0x200F: ""})


def _is_clear(pattern: Pattern) -> bool:
    """Whether nobody could take the day for the month."""
    order = "".join(piece.field for piece in pattern if piece.field in "dmy")
    between = {piece.text for piece in pattern if piece.field == "text"}
    return "m" not in order or order == "ymd" or (order == "dmy" and bool(between & {".", ". "}))


@cache
def _mistakes() -> dict[str, list[str]]:
    """Every name of a month or a weekday with the misspellings that leave the month clear."""
    meanings: dict[str, set[object]] = defaultdict(set)  # spelling, case ignored: months (0 for any weekday)
    spellings: dict[str, dict[str, None]] = defaultdict(dict)
    for language in LANGUAGES:
        for piece in {piece: None for pattern in patterns(language) for piece in pattern if piece.names}:
            for number, name in enumerate(piece.names, 1):
                wrong = _misspell(name)
                spellings[name].update(dict.fromkeys(wrong))
                for spelling in (name, *wrong):
                    meanings[spelling.casefold()].add(number if piece.field == "month" else 0)
    return {
        name: [spelling for spelling in wrong if len(meanings[spelling.casefold()]) == 1]
        for name, wrong in spellings.items()
    }


def _misspell(name: str) -> list[str]:
    """A name with one mistake: capitals or small letters, or two letters swapped, one dropped, one doubled."""
    wrong = [changed for changed in (name.upper(), name.lower(), name.swapcase()) if len(changed) == len(name)]
    if sum(letter.isalpha() for letter in name) >= SHORTEST:
        for i in range(1, len(name)):  # the first letter stays: it says most
            if name[i].isalpha():
                wrong.append(name[:i] + name[i + 1 :])
                wrong.append(name[: i + 1] + name[i:])
                if i + 1 < len(name) and name[i + 1].isalpha():
                    wrong.append(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return [text for text in dict.fromkeys(wrong) if text != name and max(map(ord, text)) < LAST_CASED]
