"""Attention visualization: weights and token labels in; text, plots and HTML pages out. Independent of the models.

The package itself can be called: `saccade.view(run, text)`; see the function `view` below.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.callables import make_callable
from saccade.view.background import Background
from saccade.view.labels import format_pair
from saccade.view.maps import AttentionMap
from saccade.view.terminal import heatmap
from saccade.view.viewing import View

if TYPE_CHECKING:
    from saccade.view.picture import Panel, draw, draw_panels

__all__ = ["AttentionMap", "Background", "Panel", "View", "draw", "draw_panels", "format_pair", "heatmap", "view"]


def __getattr__(name: str) -> Any:
    """Import plotting functions on first use, since matplotlib loads slowly."""
    if name in ("Panel", "draw", "draw_panels"):
        return getattr(import_module("saccade.view.picture"), name)
    if name == "view":
        return import_module("saccade").find_function(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


make_callable(__name__)
