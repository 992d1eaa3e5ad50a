"""Generated dates as written in 31 languages, with spelling mistakes, and their ISO form, 2024-03-05.

The patterns and names are those of the CLDR, through babel. To be unambiguous, years have four digits, and months are
numbers only with the year first or with dots (5.3.2024 is the fifth of March wherever dots are used).
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

# In scripts that common fonts have: Latin, Cyrillic, Greek, Hebrew, Arabic, Armenian, Georgian. Without Croatian, in
# which listopad is October; it is November in Polish and Czech.
LANGUAGES = (
    "en", "de", "fr", "es", "pt", "it", "nl", "sv", "da", "nb", "fi", "et", "lv", "lt", "pl", "cs", "hu", "ro", "ca",
    "tr", "id", "ru", "uk", "bg", "sr", "el", "he", "ar", "fa", "hy", "ka",
)  # fmt: skip
COUNTRIES = {"en": ("en_US", "en_GB")}  # with different patterns
SKELETONS = ("yMMMd", "yMMMMd", "yMMMEd", "yMMMMEEEEd")
YEARS = range(1000, 3000)
MISTAKE_RATE = 0.27  # share of examples with a mistake, a bit less in effect, since short names have no misspellings
MIN_MISSPELLED_LENGTH = 5  # letters; a shorter name with a letter lost, swapped or doubled might be another month
CODE_POINT_LIMIT = 0x1C80  # capital letters above it are missing in fonts (Georgian)


class PatternField(NamedTuple):
    """A part of a date pattern: fixed text, a number, or a name of a month or weekday."""

    field: str  # "text", "d", "m", "y", "month" or "weekday"
    width: int = 1
    text: str = ""
    names: tuple[str, ...] = ()


Pattern = tuple[PatternField, ...]


def generate_dates(count: int, *, seed: int, heldout: bool = False) -> Iterator[tuple[str, str]]:
    """Yield pairs of a written date and its ISO form; held-out dates have other years than the others."""
    rng = random.Random(f"dates {seed}")
    years = [year for year in YEARS if is_heldout_year(year) == heldout]
    languages = [get_patterns(language) for language in LANGUAGES]
    mistakes = _build_misspellings()
    for _ in range(count):
        year = rng.choice(years)
        day = date.fromordinal(date(year, 1, 1).toordinal() + int(rng.random() * (365 + isleap(year))))
        pattern = rng.choice(rng.choice(languages))
        yield format_date(day, pattern, mistakes, rng if rng.random() < MISTAKE_RATE else None), day.isoformat()


def is_heldout_year(year: int) -> bool:
    """Whether a year is held out: about one in ten, by its hash."""
    return sha256(str(year).encode()).digest()[0] % 10 == 0


def format_date(day: date, pattern: Pattern, mistakes: dict[str, list[str]], rng: random.Random | None = None) -> str:
    """Write a date in a pattern; with `rng`, misspell one of its names."""
    parts = [_render_field(piece, day) for piece in pattern]
    if rng:
        places = [i for i, piece in enumerate(pattern) if piece.names and mistakes[parts[i]]]
        if places:
            place = rng.choice(places)
            parts[place] = rng.choice(mistakes[parts[place]])
    return "".join(parts)


def _render_field(field: PatternField, day: date) -> str:
    match field.field:
        case "text":
            return field.text
        case "month":
            return field.names[day.month - 1]
        case "weekday":
            return field.names[day.weekday()]
        case "d":
            return f"{day.day:0{field.width}}"
        case "m":
            return f"{day.month:0{field.width}}"
    return str(day.year)


@cache
def get_patterns(language: str) -> list[Pattern]:
    """Return the distinct date patterns of a language, in a fixed order."""
    from babel import Locale

    found: dict[Pattern, None] = {}
    for name in COUNTRIES.get(language, (language,)):
        locale = Locale.parse(name)
        texts = [locale.date_formats[length].pattern for length in ("full", "long", "medium")]
        texts += [locale.datetime_skeletons[key].pattern for key in SKELETONS if key in locale.datetime_skeletons]
        for text in texts:
            pattern = _parse_pattern(text, locale)
            if pattern and _is_unambiguous(pattern):
                found[pattern] = None
    return list(found)


def _parse_pattern(text: str, locale: object) -> Pattern | None:
    """Parse a CLDR pattern; None if it has an unsupported field."""
    from babel.dates import tokenize_pattern

    pieces = []
    for _, value in tokenize_pattern(text):
        if isinstance(value, str):
            pieces.append(PatternField("text", text=_normalize_spaces(value)))
            continue
        letter, width = str(value[0]), int(value[1])
        if letter in "d" or (letter == "y" and width != 2) or (letter in "ML" and width <= 2):
            pieces.append(PatternField({"d": "d", "y": "y"}.get(letter, "m"), width))
        elif letter in "ML" and width in (3, 4):
            pieces.append(PatternField("month", names=_get_names(locale, "months", letter == "L", width)))
        elif letter in "Ec" and width <= 4:
            pieces.append(PatternField("weekday", names=_get_names(locale, "days", letter == "c", width)))
        else:
            return None
    return tuple(pieces)


def _get_names(locale: object, what: str, standalone: bool, width: int) -> tuple[str, ...]:
    tables = getattr(locale, what)["stand-alone" if standalone else "format"]
    names = tables["wide" if width == 4 else "abbreviated"]
    keys = range(7) if what == "days" else range(1, 13)
    return tuple(_normalize_spaces(names[key]) for key in keys)


def _normalize_spaces(text: str) -> str:
    """Replace special spaces by ordinary ones, and remove joiners and marks of the writing direction."""
    return text.translate({0x202F: " ", 0xA0: " ", 0x200C: "", 0x200E: "", 0x200F: ""})


def _is_unambiguous(pattern: Pattern) -> bool:
    """Whether the day cannot be mistaken for the month."""
    order = "".join(piece.field for piece in pattern if piece.field in "dmy")
    between = {piece.text for piece in pattern if piece.field == "text"}
    return "m" not in order or order == "ymd" or (order == "dmy" and bool(between & {".", ". "}))


@cache
def _build_misspellings() -> dict[str, list[str]]:
    """Return for each name of a month or weekday its misspellings that cannot mean another month."""
    meanings: dict[str, set[object]] = defaultdict(set)  # months (0: weekday) by spelling, ignoring case
    spellings: dict[str, dict[str, None]] = defaultdict(dict)
    for language in LANGUAGES:
        for piece in {piece: None for pattern in get_patterns(language) for piece in pattern if piece.names}:
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
    """Return a name with one mistake: upper or lower case, or a letter swapped, dropped or doubled."""
    wrong = [changed for changed in (name.upper(), name.lower(), name.swapcase()) if len(changed) == len(name)]
    if sum(letter.isalpha() for letter in name) >= MIN_MISSPELLED_LENGTH:
        for i in range(1, len(name)):  # keep the first letter, which tells most about the name
            if name[i].isalpha():
                wrong.append(name[:i] + name[i + 1 :])
                wrong.append(name[: i + 1] + name[i:])
                if i + 1 < len(name) and name[i + 1].isalpha():
                    wrong.append(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return [text for text in dict.fromkeys(wrong) if text != name and max(map(ord, text)) < CODE_POINT_LIMIT]
