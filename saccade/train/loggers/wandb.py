"""Weights & Biases: a run in the folder `wandb` of our run, offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import wandb

from saccade.config.schema import Recipe
from saccade.files import atomic_write

FOLDER, ID_FILE = "wandb", "saccade-run-id"
PROJECT = "saccade"
FINAL = "final/"


class WandbLogger:
    """Writes to a run of Weights & Biases; `wandb sync RUN/wandb/offline-*` uploads it later.

    Without WANDB_MODE, nothing leaves the machine. WANDB_PROJECT, WANDB_ENTITY and the like are respected.
    """

    def __init__(self, run: Path, recipe: Recipe, start_step: int) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode != "online":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # reports of faults of wandb itself
        self.run = wandb.init(
            id=read_run_id(run / FOLDER / ID_FILE),
            name=run.resolve().name,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            config=recipe.model_dump(mode="json"),
            dir=str(run),
            mode=mode,  # type: ignore[arg-type]  # wandb says which modes there are
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        final = {name: value for name, value in values.items() if name.startswith(FINAL)}
        self.run.summary.update(final)
        self.run.log({name: value for name, value in values.items() if name not in final}, step=step)

    def close(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


def read_run_id(path: Path) -> str:
    """The id of the logged run, which a resumed training uses again; names of runs are not unique in a project."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="ascii").strip()
