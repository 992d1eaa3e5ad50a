"""What a recipe or an override may ask for: bounds that hold before anything is parsed deeper or allocated."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from saccade.errors import SaccadeError

MAX_NESTING = 32  # levels of tables and lists; a recipe has about six
MAX_CHARACTERS = 1_000_000  # of a TOML file or an override
DEEP_KEY = re.compile(rf"""(?:[\w"'-]{{1,60}}[ \t]?\.[ \t]?){{{MAX_NESTING}}}""")  # a dotted key of too many parts
MAX_INTEGER = 2**63 - 1  # TOML has integers of 64 bits
MAX_INDEX_DIGITS = 6  # of the index of an item of a list, as in objectives.0.alpha


class InvalidTomlError(SaccadeError):
    """A text that is not TOML."""


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    """Parse TOML; a text that is too large, or that the parser cannot take, is a mistake of the user."""
    if len(text) > MAX_CHARACTERS:
        raise SaccadeError(f"{origin} has more than {MAX_CHARACTERS:,} characters; is it a recipe?")
    if DEEP_KEY.search(text):  # the parser takes time by the square of the length of such a key
        raise build_nesting_error(origin)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidTomlError(f"{origin} is not valid TOML: {error}") from None
    except RecursionError:
        raise build_nesting_error(origin) from None
    except ValueError:  # the only other one that Python raises here: more digits than it converts
        raise build_integer_error(origin) from None
    check_bounds(values, origin)
    return values


def check_bounds(values: Any, origin: str) -> None:
    """Raise if plain values are nested too deeply or have an integer of more than 64 bits."""
    level = [values]
    for _ in range(MAX_NESTING):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                inner.extend(value.values())
            elif isinstance(value, list | tuple):
                inner.extend(value)
            elif isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise build_integer_error(origin)
        if not inner:
            return
        level = inner
    raise build_nesting_error(origin)


def build_nesting_error(origin: str) -> SaccadeError:
    return SaccadeError(f"{origin} is nested too deeply, expected at most {MAX_NESTING} levels; write it with fewer")


def build_integer_error(origin: str) -> SaccadeError:
    return SaccadeError(f"{origin} has a whole number that is too large, expected at most {MAX_INTEGER}; lower it")


def is_index(key: str) -> bool:
    """Whether a key counts the items of a list: few digits 0 to 9, and not those of other scripts or superscripts."""
    return key.isascii() and key.isdigit() and len(key) <= MAX_INDEX_DIGITS
