"""The interface of all loggers, and how they are chosen by `train.loggers`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from saccade.config.schema import Recipe
from saccade.errors import SaccadeError


class Logger(Protocol):
    """Writes the numbers of a training to another program; a resumed training goes on in the same logged run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by name: `train/loss`, `valid/bleu`, and `final/bleu` of the weights that a run ends with."""
        ...

    def close(self, *, failed: bool) -> None:
        """Write what is still in memory and end; `failed` if the training did not come to its end."""
        ...


LOGGERS = {  # module and class, imported when they are needed
    "tensorboard": ("saccade.train.loggers.tensorboard", "TensorBoardLogger"),
    "wandb": ("saccade.train.loggers.wandb", "WandbLogger"),
    "mlflow": ("saccade.train.loggers.mlflow", "MlflowLogger"),
}


def open_loggers(run: Path, recipe: Recipe, start_step: int) -> dict[str, Logger]:
    """Open the loggers of a recipe for a run that begins after `start_step`; their packages are imported now."""
    return {name: open_logger(name, run, recipe, start_step) for name in recipe.train.loggers}


def open_logger(name: str, run: Path, recipe: Recipe, start_step: int) -> Logger:
    module, class_name = LOGGERS[name]
    try:
        logger: Logger = getattr(importlib.import_module(module), class_name)(run, recipe, start_step)
    except Exception as error:  # of the package of others, such as a server that does not answer
        message = " ".join(str(error).split())
        raise SaccadeError(
            f"cannot log to {name} ({type(error).__name__}: {message}); correct its settings, or leave it out of "
            "train.loggers"
        ) from error
    return logger
