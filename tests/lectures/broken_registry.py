"""Who breaks what: row of the lectures -> an implementation that is wrong in one place."""

from collections.abc import Callable
from typing import Any

BREAKS: dict[int, Callable[[Any], None]] = {}


def breaks(*rows: int) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def note(function: Callable[[Any], None]) -> Callable[[Any], None]:
        BREAKS.update(dict.fromkeys(rows, function))
        return function

    return note


def puts(*rows: int, owner: Any, **changes: Any) -> None:
    """Some names of a module or class stand for something else."""

    @breaks(*rows)
    def put(patch: Any) -> None:
        for name, value in changes.items():
            patch.setattr(owner, name, value)
