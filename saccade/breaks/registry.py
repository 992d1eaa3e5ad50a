"""The registry of breaks: `break_code` registers one, `apply` switches it on for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

import saccade.breaks
from saccade.breaks.patching import Patch, patching
from saccade.config.plugins import load_modules
from saccade.errors import SaccadeError

ENTRY_POINTS = "saccade.breaks"  # group of entry points of installed plugins whose modules register breaks


@dataclass(frozen=True)
class Break:
    """A fault that keeps shapes, types and finiteness, so that only the values are wrong."""

    name: str  # such as "uniform-attention"
    what: str  # what the broken code does, as one sentence
    change: Callable[[Patch], None]


BREAKS: dict[str, Break] = {}  # filled by `break_code` when the modules are imported


def break_code(name: str, what: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register the decorated function, which changes code through a `Patch`, as a break."""

    def register(change: Callable[[Patch], None]) -> Callable[[Patch], None]:
        if name in BREAKS:
            raise ValueError(f"there are two breaks called '{name}'")
        BREAKS[name] = Break(name, what, change)
        return change

    return register


def load_breaks() -> dict[str, Break]:
    """All breaks by name, those of installed plugins included."""
    for module in iter_modules(saccade.breaks.__path__, "saccade.breaks."):
        import_module(module.name)
    load_modules(ENTRY_POINTS)
    return dict(sorted(BREAKS.items()))


def find_break(name: str) -> Break:
    """The break of this name."""
    known = load_breaks()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "`saccade lectures audit --list` lists them"
        raise SaccadeError(f"there is no break '{name}'; {hint}")
    return known[name]


@contextmanager
def apply(fault: Break) -> Iterator[None]:
    """Run the block with broken code."""
    with patching() as patch:
        fault.change(patch)
        yield
