"""saccade: attention models that read something, attend to it, and write something."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config.load import describe_recipes as recipes
    from saccade.exchange.api import export, import_model
    from saccade.plan.api import plan
    from saccade.predict.predictors.predictor import Predictor
    from saccade.predict.view import view
    from saccade.score.api import compare, evaluate
    from saccade.sweep import sweep
    from saccade.train import train

    load = Predictor.load

__version__ = "0.9.0"
__all__ = [
    "SaccadeError",
    "__version__",
    "compare",
    "evaluate",
    "export",
    "import_model",
    "load",
    "plan",
    "recipes",
    "sweep",
    "train",
    "view",
]

# Public functions: the module and the name in it. Where a package has the same name, the package itself can be called.
FUNCTIONS = {
    "compare": ("saccade.score.api", "compare"),
    "evaluate": ("saccade.score.api", "evaluate"),
    "export": ("saccade.exchange.api", "export"),
    "import_model": ("saccade.exchange.api", "import_model"),
    "load": ("saccade.predict.predictors.predictor", "Predictor.load"),
    "plan": ("saccade.plan.api", "plan"),
    "recipes": ("saccade.config.load", "describe_recipes"),
    "sweep": ("saccade.sweep.api", "sweep"),
    "train": ("saccade.train.api", "train"),
    "view": ("saccade.predict.view", "view"),
}
PACKAGES = ("plan", "sweep", "train", "view")  # packages that have the name of a function


def __getattr__(name: str) -> Any:
    """Look functions up on first use, so that `import saccade` need not wait for torch."""
    if name in PACKAGES:
        return importlib.import_module(f"saccade.{name}")
    if name in FUNCTIONS:
        return find_function(name)
    raise AttributeError(f"module 'saccade' has no attribute '{name}'")


def find_function(name: str) -> Any:
    """Import a public function."""
    module, path = FUNCTIONS[name]
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
