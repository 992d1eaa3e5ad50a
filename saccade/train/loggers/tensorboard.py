"""TensorBoard: event files in the folder `tensorboard` of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from saccade.config.load import dump
from saccade.config.schema import Recipe

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Writes scalars; steps that a resumed run takes again are hidden."""

    def __init__(self, run: Path, recipe: Recipe, start_step: int) -> None:
        self.writer = SummaryWriter(str(run / FOLDER), purge_step=start_step + 1)
        if start_step == 0:
            self.writer.add_text("recipe", f"```toml\n{dump(recipe)}```", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        self.writer.close()
