"""Attention made visible: arrays and labels in, text and pictures out. Nothing here knows a model."""

from saccade.view.labels import from_to
from saccade.view.picture import Panel, draw, draw_panels
from saccade.view.terminal import heatmap

__all__ = ["Panel", "draw", "draw_panels", "from_to", "heatmap"]
