"""Attention made visible: arrays and labels in, text, pictures and pages out. Nothing here knows a model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.view.background import Background
from saccade.view.labels import from_to
from saccade.view.maps import AttentionMap
from saccade.view.terminal import heatmap
from saccade.view.viewing import View

if TYPE_CHECKING:
    from saccade.view.picture import Panel, draw, draw_panels

__all__ = ["AttentionMap", "Background", "Panel", "View", "draw", "draw_panels", "from_to", "heatmap"]


def __getattr__(name: str) -> Any:
    """What draws is imported when it is asked for: matplotlib takes a while to load."""
    if name in ("Panel", "draw", "draw_panels"):
        return getattr(import_module("saccade.view.picture"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
