"""The trials of a sweep: one training of one configuration with one seed, and the file that remembers the sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saccade.config.load import override
from saccade.config.plugins import Kinds
from saccade.config.schema import Recipe
from saccade.data.sources.given import Files
from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.parsing import read_json
from saccade.runs import METRICS, RECIPE, get_number, get_state, get_validation_score, read_metrics
from saccade.sweep.grid import Configuration, Grid, describe_grid
from saccade.train.api import build_recipe, check_data, check_same_settings
from saccade.train.setup import check_settings

STATE_FILE = "sweep.json"
FINISHED, PRUNED, FAILED = "finished", "pruned", "failed"


@dataclass(frozen=True)
class Trial:
    """One training."""

    configuration: Configuration
    seed: int
    run: Path
    recipe: Recipe

    def describe(self) -> str:
        return f"{self.configuration.describe()}, seed {self.seed}"

    def get_score(self, last_step: float = float("inf")) -> float | None:
        """The validation score of the run, or of its best validation up to a step; None where there is none."""
        return get_validation_score(read_metrics(self.run / METRICS), self.recipe.train.metric, last_step)

    def measure(self) -> tuple[int, float]:
        """The steps and the seconds of training so far."""
        lines = read_metrics(self.run / METRICS)
        seconds = [number for line in lines if (number := get_number(line, "seconds")) is not None]
        return max((line["step"] for line in lines), default=0), max(seconds, default=0.0)

    def count_steps(self) -> int:
        return self.measure()[0]

    @property
    def is_finished(self) -> bool:
        return get_state(self.run) == FINISHED


@dataclass(frozen=True)
class TrialBuilder:
    """Builds the recipes of trials from what the user gave."""

    folder: Path  # of the sweep; runs of trials are beside it
    recipe: Recipe | str | Path
    seeds: int
    kinds: Kinds
    data: Files | None = None
    valid: Files | float | None = None
    overrides: Sequence[str] = ()
    form: Mapping[str, bool] = field(default_factory=lambda: {"tiny": False, "paper": False})

    def build(self, configuration: Configuration) -> list[Trial]:
        """The trials of a configuration; raises a SaccadeError where the recipe refuses one of its values."""
        chosen = [*self.overrides, *configuration.overrides]
        recipe = build_recipe(
            self.recipe, data=self.data, valid=self.valid, overrides=chosen, form=self.form, kinds=self.kinds
        )
        check_trainable(recipe)
        trials = []
        for seed in range(1, self.seeds + 1):
            run = self.folder.with_name(f"{self.folder.name}-{configuration.format_name()}-seed-{seed}")
            trials.append(Trial(configuration, seed, run, override(recipe, [f"train.seed={seed}"])))
            check_same_settings(trials[-1].recipe, run, hint="choose another --name")
        return trials


def check_trainable(recipe: Recipe) -> None:
    """Refuse what every training would refuse, and a recipe without validation data."""
    check_data(recipe)
    check_settings(recipe)
    recipe.train.check_loggers()
    if not recipe.data.valid:
        raise SaccadeError(
            f"a sweep chooses by the score on validation data, and recipe '{recipe.name}' has none; give --valid "
            "FILES, or data.valid=0.01 to hold some out"
        )


@dataclass
class SweepState:
    """What a sweep remembers beside its runs."""

    folder: Path
    grid: dict[str, Any]
    search: str
    suggestions: list[list[str]] = field(default_factory=list)  # values that the search has chosen so far
    failures: dict[str, str] = field(default_factory=dict)  # reasons by the name of the run
    diverged: list[str] = field(default_factory=list)  # runs that fail again when they are started again

    def save(self) -> None:
        values = {name: value for name, value in vars(self).items() if name != "folder"}
        atomic_write(self.folder / STATE_FILE, (json.dumps(values, indent=1) + "\n").encode())

    def record_failure(self, trial: Trial, reason: str, *, diverged: bool) -> None:
        self.failures[trial.run.name] = reason
        self.diverged += [trial.run.name] * diverged
        self.save()


def open_state(folder: Path, grid: Grid, search: str) -> SweepState:
    """Read the state of an earlier start of the same sweep, or begin a new one; refuse another grid."""
    state = SweepState(folder, describe_grid(grid), search)
    if (folder / RECIPE).exists():
        raise SaccadeError(f"'{folder}' is a run; choose another name for the sweep with --name")
    if not (folder / STATE_FILE).is_file():
        return state
    try:
        values = read_json(folder / STATE_FILE)
        before = SweepState(folder, **values)
    except (ValueError, TypeError):
        raise SaccadeError(f"'{folder / STATE_FILE}' is damaged; remove it: finished runs are kept") from None
    if (before.grid, before.search) != (state.grid, state.search):
        raise SaccadeError(
            f"the sweep '{folder}' has another grid: {format_grid(before)}, now {format_grid(state)}; choose another "
            "--name"
        )
    before.failures = {name: reason for name, reason in before.failures.items() if name in before.diverged}
    return before


def format_grid(state: SweepState) -> str:
    """A grid in one line."""
    found = (f"{key}={text if isinstance(text, str) else ','.join(text)}" for key, text in state.grid.items())
    return " ".join(found)
