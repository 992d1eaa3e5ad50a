"""`saccade.sweep(...)`: train a recipe with every combination of some values, and compare them on validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from saccade.config.load import parse_value, to_override_list
from saccade.config.plugins import load_plugins
from saccade.config.schema import Recipe
from saccade.data.sources.given import Files
from saccade.errors import SaccadeError
from saccade.files import lock_file
from saccade.sweep.grid import Axis, Grid, Range, count_configurations, list_configurations, list_probes, parse_grid
from saccade.sweep.progress import Progress
from saccade.sweep.report import write_report
from saccade.sweep.results import Sweep, build_sweep
from saccade.sweep.schedule import Group, Halving, choose_rungs, train_grid
from saccade.sweep.search import Search, check_optuna
from saccade.sweep.trials import SweepState, TrialBuilder, open_state
from saccade.sweep.workers import Pool
from saccade.train.api import build_recipe, get_run_path
from saccade.train.signals import InterruptHandler

GRID, OPTUNA = "grid", "optuna"  # how configurations are chosen
MAX_TRIALS = 100  # trainings that are started without a question
MIN_LOG_RATIO = 10  # of the largest and the smallest value of a logarithmic axis
LOCK = ".lock"
SEED = "train.seed"
FIXED_KEYS = {
    SEED: "each configuration is trained with the seeds 1 to N of --seeds N",
    "train.metric": "scores by different metrics cannot be compared",
    "data.valid": "scores on different data cannot be compared",
    "name": "it changes nothing",
}


def sweep(  # noqa: PLR0913  # what users choose is its parameters
    recipe: Recipe | str | Path,
    *,
    grid: Mapping[str, Any],
    seeds: int = 3,
    jobs: int = 1,
    data: Files | None = None,
    valid: Files | float | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    tiny: bool = False,
    paper: bool = False,
    plugins: Sequence[str | Path] = (),
    name: str | Path | None = None,
    prune: bool = False,
    search: str = GRID,
    trials: int | None = None,
    max_trials: int = MAX_TRIALS,
    report: Callable[[str], None] | None = None,
) -> Sweep:
    """Train a recipe with every combination of values and several seeds; return the table of scores, best first.

    `grid` has the values of each key: {"train.schedule.lr": [1e-4, 3e-4]}. With `search="optuna"`, which needs the
    package optuna, it may have ranges ("1e-5..1e-2:log"), from which `trials` configurations are chosen. `jobs` trials
    are trained at a time, each in a process of its own, so kinds of your own come from files (`plugins`). `prune` stops
    the worse half of the configurations after a quarter of the steps, and again after half of them. The sweep called
    `name` goes on where it was interrupted. `report` gets a line for each training that starts or ends.
    """
    axes, chosen, kinds = parse_grid(grid), to_override_list(overrides), load_plugins(*plugins)
    check_options(axes, chosen, seeds=seeds, jobs=jobs, search=search, trials=trials)
    form = {"tiny": tiny, "paper": paper}
    base = build_recipe(recipe, data=data, valid=valid, overrides=chosen, form=form, kinds=kinds)
    folder = get_run_path(name or f"{base.name or 'run'}-sweep")
    builder = TrialBuilder(folder, recipe, seeds, kinds, data=data, valid=valid, overrides=chosen, form=form)
    check_count(seeds * (trials or count_configurations(axes)), base.train.steps, max_trials)
    plan = make_plan(builder, axes, base, search=search, trials=trials, prune=prune)
    with lock_sweep(folder), InterruptHandler() as interrupts:
        plan.state.save()
        with Progress(plan.count, done=plan.count_done(), jobs=jobs, steps=plan.steps, report=report) as progress:
            progress.print_line(plan.describe(jobs))
            files = [str(Path(path).resolve()) for path in plugins]
            with closing(Pool(plan.state, progress, interrupts, jobs=jobs, plugins=files)) as pool:
                groups = plan.train(pool, jobs)
        logarithmic = [axis.key for axis in axes if is_logarithmic(axis)]
        result = build_sweep(folder, groups, plan.state.failures, recipe=base, seeds=seeds, log_keys=logarithmic)
        write_report(result, kinds)
    return result


def check_options(
    grid: Grid, overrides: Sequence[str], *, seeds: int, jobs: int, search: str, trials: int | None
) -> None:
    """Refuse options that contradict each other."""
    for option, number in (("--seeds", seeds), ("--jobs", jobs), ("--trials", trials)):
        if number is not None and number < 1:
            raise SaccadeError(f"{option} must be at least 1, got {number}")
    if search not in (GRID, OPTUNA):
        raise SaccadeError(f"unknown search '{search}'; expected {GRID} (every combination of the values) or {OPTUNA}")
    if search == GRID and trials is not None:
        raise SaccadeError("--trials is for a search beyond the grid; add --search optuna, or leave it out")
    if search == OPTUNA:
        if trials is None:
            raise SaccadeError("--search optuna needs --trials N, the number of configurations to try")
        check_optuna()
    for axis in grid:
        if isinstance(axis, Range) and search == GRID:
            raise SaccadeError(
                f"{axis.key} has a range, which a grid cannot try; list values as A,B,..., or add --search optuna "
                "--trials N"
            )
        if axis.key in FIXED_KEYS:
            raise SaccadeError(f"{axis.key} cannot be swept: {FIXED_KEYS[axis.key]}")
    keys = {axis.key for axis in grid}
    for word in overrides:
        key = word.partition("=")[0].strip()
        if key in keys:
            raise SaccadeError(f"{key} is in the grid and is set too: {word}; leave one out")
        if key == SEED:
            raise SaccadeError(f"{word}: {FIXED_KEYS[SEED]}")


@dataclass(frozen=True)
class Plan:
    """What a sweep is going to train."""

    builder: TrialBuilder
    state: SweepState
    groups: list[Group]  # of a grid; of a search, those that were built to check the values
    trials: int | None  # configurations that a search tries; None for a grid
    open_search: Callable[[], Search]
    halving: Halving | None

    @property
    def count(self) -> int:
        """The number of trainings."""
        return self.builder.seeds * (self.trials or len(self.groups))

    @property
    def steps(self) -> int | None:
        """Steps of the longest training; None if it has another limit."""
        found = [group.trials[0].recipe.train.steps for group in self.groups]
        return None if None in found else max(steps for steps in found if steps is not None)

    def count_done(self) -> int:
        """Trials of a grid that an earlier start has done; a search finds out one by one."""
        trials = [trial for group in self.groups for trial in group.trials if self.trials is None]
        return sum(trial.is_finished or trial.run.name in self.state.failures for trial in trials)

    def describe(self, jobs: int) -> str:
        """What is trained, before it begins."""
        configurations, seeds = self.trials or len(self.groups), self.builder.seeds
        steps = f", {'up to ' * bool(self.halving)}{self.steps:,} steps each" if self.steps else ""
        done = self.count_done()
        return (
            f"sweep {self.state.folder}: {self.count:,} trials ({configurations:,} configurations x {seeds} "
            f"seed{'s' * (seeds > 1)}){steps}, {jobs} at a time{f'; {done:,} are done' * bool(done)}"
        )

    def train(self, pool: Pool, jobs: int) -> list[Group]:
        """Train all configurations, or those that the search chooses, and return them."""
        if self.trials is None:
            train_grid(pool, self.groups, self.halving)
            return self.groups
        return self.open_search().run(pool, self.builder.build, trials=self.trials, jobs=jobs)


def make_plan(builder: TrialBuilder, grid: Grid, base: Recipe, *, search: str, trials: int | None, prune: bool) -> Plan:
    """Build all trials of a grid, so that a value that the recipe refuses is found before any of them starts."""
    configurations = list_configurations(grid) if search == GRID else list_probes(grid)
    groups = [Group(configuration, builder.build(configuration)) for configuration in configurations]
    higher = base.metric.higher_is_better
    rungs = choose_rungs([group.trials[0].recipe for group in groups]) if prune else []
    halving = Halving(rungs, higher_is_better=higher) if prune else None
    state = open_state(builder.folder, grid, search)
    open_search = partial(Search, grid, state, higher_is_better=higher, halving=halving)
    return Plan(builder, state, groups, trials, open_search, halving)


def check_count(count: int, steps: int | None, max_trials: int) -> None:
    """Refuse more trainings than are usually meant, with their number and steps, before any of them is built."""
    if count > max_trials:
        total = f" of {steps:,} steps, {count * steps:,} steps in all," if steps else ""
        raise SaccadeError(
            f"this sweep has {count:,} trials{total} and at most {max_trials:,} are started without a question; "
            f"give fewer values, search with --search optuna --trials N, or confirm with --max-trials {count}"
        )


def is_logarithmic(axis: Axis | Range) -> bool:
    """Whether values belong on a logarithmic axis: positive numbers that differ at least by a factor of ten."""
    if isinstance(axis, Range):
        return axis.is_log
    values = [parse_value(text) for text in axis.values]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return False
    return min(values) > 0 and max(values) / min(values) >= MIN_LOG_RATIO


@contextmanager
def lock_sweep(folder: Path) -> Iterator[None]:
    """Create the folder of a sweep and lock it against a second start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise SaccadeError(f"cannot write to the folder '{folder}': {error.strerror or error}") from None
    with file:
        if not lock_file(file):
            raise SaccadeError(f"the sweep '{folder}' is being trained by another process; wait until it ends")
        yield
