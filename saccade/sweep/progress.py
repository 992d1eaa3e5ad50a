"""Shows how far a sweep is: a bar on a terminal, else a line for each training that starts or ends; all on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from saccade.sweep.grid import Configuration
from saccade.sweep.trials import FINISHED, Trial


class Progress:
    """Counts trials and their steps; `report` prints a line.

    `total` is the number of trials, `done` of them were done by an earlier start; each takes at most `steps` steps,
    None if that is unknown.
    """

    def __init__(
        self,
        total: int,
        *,
        done: int = 0,
        jobs: int = 1,
        steps: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.total, self.done, self.jobs, self.report = total, done, jobs, report
        self.all_steps = None if steps is None else steps * (total - done)
        self.trained: dict[str, tuple[int, float]] = {}  # steps and seconds of each run that this start trains
        self.has_estimated = False
        self.bar: Bar | None = None

    def __enter__(self) -> Progress:
        if self.report is None and sys.stderr.isatty():
            columns = (
                TextColumn("{task.completed}/{task.total} trials"),
                BarColumn(),
                TextColumn("{task.description}"),
            )
            self.bar = Bar(*columns, console=Console(stderr=True))
            self.bar.add_task("", total=self.total)
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def print_line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.report is not None:
            self.report(text)
        elif self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def start(self, trial: Trial, until: int | None) -> None:
        steps, _ = self.trained[trial.run.name] = trial.measure()
        goal = f" to step {until:,}" if until else ""
        self.print_line(f"{trial.describe()}: {f'goes on from step {steps:,}' if steps else 'trains'}{goal}")

    def finish(self, trial: Trial, state: str, reason: str) -> None:
        steps, _ = self.trained[trial.run.name] = trial.measure()
        self.done += state == FINISHED or bool(reason)
        score = trial.get_score()
        result = "" if score is None else f", {trial.recipe.train.metric} {score:.4g}"
        why = f": {reason}" if reason else ""
        self.print_line(f"{trial.describe()}: {state} at step {steps:,}{result}{why} ({self.describe_rest()})")

    def prune(self, configuration: Configuration, seeds: int, step: int) -> None:
        """Report that the trials of a configuration do not go on."""
        self.done += seeds
        self.print_line(f"{configuration.describe()}: pruned, in the worse half at step {step:,}")

    def describe_rest(self) -> str:
        left = self.format_time_left()
        return f"{self.done}/{self.total} done" + (f", about {left} left" if left else "")

    def update(self, running: Sequence[Trial]) -> None:
        """Show the steps of the trainings that are going on, and estimate the time of all as soon as it is known."""
        for trial in running:
            self.trained[trial.run.name] = trial.measure()
        left = self.format_time_left()
        if left and not self.has_estimated:
            self.has_estimated = True
            self.print_line(f"at this speed the sweep takes about {left} more; Ctrl-C saves all trainings and stops")
        if self.bar is not None:
            steps = "  ".join(f"{trial.describe()}: step {self.trained[trial.run.name][0]:,}" for trial in running)
            description = f"{left} left  {steps}" if left else steps
            self.bar.update(self.bar.task_ids[0], completed=self.done, description=description)

    def format_time_left(self) -> str:
        """The time that is left at the speed so far, if no trial is pruned; empty while it is unknown."""
        steps, seconds = (sum(numbers) for numbers in zip((0, 0.0), *self.trained.values(), strict=True))
        if self.all_steps is None or not steps:
            return ""
        return format_time(max(0, self.all_steps - steps) * seconds / steps / self.jobs)


def format_time(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
