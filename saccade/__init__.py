"""saccade: attention models that read something, attend to it, and write something."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.predict.predictors.predictor import Predictor
    from saccade.train import train

    load = Predictor.load

__version__ = "0.9.0"
__all__ = ["SaccadeError", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """Looks `load` and `train` up on first use, so that `import saccade` need not wait for torch."""
    if name == "load":
        return importlib.import_module("saccade.predict.predictors.predictor").Predictor.load
    if name == "train":
        return importlib.import_module("saccade.train")  # a package that can be called, see there
    raise AttributeError(f"module 'saccade' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
