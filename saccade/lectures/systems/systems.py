"""Small models of the recipes before the Transformer, for the checks on them."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.lectures.small import VOCABULARY_SIZE
from saccade.model.build.model import build
from saccade.model.model import Model


def load_system(name: str, changes: Sequence[str] = ()) -> Recipe:
    """Load a recipe with width 12 and without dropout."""
    small = [f"{part}.stack.dim=12" for part in ("reader", "writer")]
    still = [f"{key}=0.0" for part in ("reader", "writer") for key in (f"{part}.dropout", f"{part}.stack.dropout")]
    return load(name, overrides=[*small, *still, *changes])


def build_system(name: str, changes: Sequence[str] = ()) -> Model:
    """Build the model of such a recipe in float64."""
    recipe = load_system(name, changes)
    return build(recipe, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()
