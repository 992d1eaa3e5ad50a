"""Registry of deliberately broken implementations by row of the lectures."""

from collections.abc import Callable
from typing import Any

BREAKS: dict[int, Callable[[Any], None]] = {}


def breaks(*rows: int) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def note(function: Callable[[Any], None]) -> Callable[[Any], None]:
        BREAKS.update(dict.fromkeys(rows, function))
        return function

    return note


def puts(*rows: int, owner: Any, **changes: Any) -> None:
    """Register patches of attributes of a module or class."""

    @breaks(*rows)
    def put(patch: Any) -> None:
        for name, value in changes.items():
            patch.setattr(owner, name, value)
