"""Breaks of views of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from saccade.breaks.patching import Patch
from saccade.breaks.registry import break_code
from saccade.predict import attention_maps
from saccade.view import spotlight
from saccade.view.background import Background
from saccade.view.viewing import View


@break_code("view-cells-in-column-order", "Views lay out the cells of a picture column by column.")
def lay_out_columns_first(patch: Patch) -> None:
    def to_grid(original: Any, self: Background, weights: Any) -> Any:
        high, wide = self.grid
        return np.asarray(weights, dtype=float).reshape(-1, wide, high).transpose(0, 2, 1)

    patch.replace(Background.to_grid, to_grid)


@break_code("spotlight-off", "Drawings of attention show the picture as it is.")
def leave_out_spotlight(patch: Patch) -> None:
    patch.replace(spotlight.darken_unattended, lambda original, pixels, grid: pixels)


@break_code("maps-of-one-word", "Every word has the attention map of the first one.")
def repeat_first_map(patch: Patch) -> None:
    def make_view(original: Any, *args: Any, **named: Any) -> View:
        view: View = original(*args, **named)
        maps = [replace(one, weights=np.repeat(one.weights[:, :1], one.weights.shape[1], 1)) for one in view.maps]
        return replace(view, maps=maps)

    patch.replace(attention_maps.make_view, make_view)


@break_code("view-in-reverse", "Views show the attention maps from the last word to the first.")
def reverse_maps(patch: Patch) -> None:
    def data(original: Any, self: View) -> Any:
        return original(replace(self, maps=[replace(one, weights=one.weights[:, ::-1]) for one in self.maps]))

    patch.replace(View.data, data)
