"""matplotlib, imported without reading `matplotlibrc` of the working folder, which may be somebody else's.

It could let every plot run LaTeX, end a training that is done by a line that cannot be read, or hang as a pipe.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SETTINGS = "matplotlibrc"  # the first name that matplotlib looks for, in the working folder


def import_matplotlib() -> None:
    """Import matplotlib while the file in the working folder seems not to be there."""
    if "matplotlib" in sys.modules:
        return
    exists = os.path.exists

    def exists_elsewhere(path: Any) -> bool:
        return path != SETTINGS and exists(path)

    os.path.exists = exists_elsewhere
    try:
        importlib.import_module("matplotlib")
    finally:
        os.path.exists = exists


import_matplotlib()

import matplotlib as matplotlib  # noqa: E402  # here and below: only now
from matplotlib import font_manager as font_manager  # noqa: E402
from matplotlib.axes import Axes as Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure as Figure  # noqa: E402
from matplotlib.layout_engine import ConstrainedLayoutEngine as ConstrainedLayoutEngine  # noqa: E402


@contextmanager
def plot_defaults(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Use matplotlib's own defaults inside the block, with changes: settings of the user have no effect.

    A dollar sign in a text starts no formula.
    """
    settings: dict[Any, Any] = {"text.parse_math": False, **(changes or {})}  # keys as the user wrote them
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


@contextmanager
def reproducible_plot() -> Iterator[None]:
    """Settings of figures whose files are the same each time, and whose text in SVG stays text."""
    with plot_defaults({"svg.hashsalt": "saccade", "svg.fonttype": "none", "font.size": 9}):
        yield
