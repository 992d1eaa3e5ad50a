"""Logging of a run: metrics.jsonl, samples.jsonl, progress on stderr or in a notebook, and `train.loggers`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from saccade.config.schema import Recipe
from saccade.display import NotebookProgress, find_notebook_display
from saccade.files import atomic_write
from saccade.runs import METRICS, SAMPLES, read_metric_lines
from saccade.train.loggers.logger import Logger, open_loggers

if TYPE_CHECKING:
    from saccade.train.session import Session

MAX_SAMPLES = 8  # validation examples whose outputs are written to samples.jsonl


class Log:
    """Writes each report and validation as one flushed line of JSON, and prints it."""

    def __init__(self, run: Path, *, total: int | None, recipe: Recipe | None = None, quiet: bool = False) -> None:
        self.run, self.total, self.quiet, self.recipe = run, total, quiet, recipe
        self.start_step = 0  # that a resumed run continues from
        self.loggers: dict[str, Logger] = {}
        self.notebook: NotebookProgress | None = None  # in place of stderr
        self.bar: Progress | None = None
        self.bar_task: TaskID | None = None
        self.file: TextIO | None = None

    def __enter__(self) -> Log:
        if not self.quiet:
            if self.recipe is not None:
                self.loggers = open_loggers(self.run, self.recipe, self.start_step)
            self.file = (self.run / METRICS).open("a", encoding="utf-8")
            if self.notebook is None and sys.stderr.isatty():
                columns = (TextColumn("step {task.completed:,}"), BarColumn(), TextColumn("{task.description}"))
                self.bar = Progress(*columns, console=Console(stderr=True))
                self.bar_task = self.bar.add_task("", total=self.total)
                self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.file is not None:
            self.file.close()
        for name in [*self.loggers]:
            self.call_logger(name, lambda logger: logger.close(failed=error is not None))

    def print_line(self, text: str) -> None:
        """Print a line on stderr, above the progress bar if there is one, or in the output of a notebook."""
        if self.quiet:
            return
        if self.notebook is not None:
            self.notebook.print_line(text)
        elif self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def set_total(self, steps: int) -> None:
        """Set the number of steps that the progress bar ends with."""
        self.total = steps
        if self.bar is not None and self.bar_task is not None:
            self.bar.update(self.bar_task, total=steps)

    def advance(self, step: int) -> None:
        if self.notebook is not None:
            self.notebook.set_progress(step, self.total)
        if self.bar is not None and self.bar_task is not None:
            self.bar.update(self.bar_task, completed=step)

    def record(self, event: str, *, step: int, values: Mapping[str, Any]) -> None:
        """Write a line of metrics.jsonl, and its numbers to the loggers."""
        if self.file is not None:
            print(json.dumps({"event": event, "step": step, **values}), file=self.file, flush=True)
        self.log_numbers(event, step=step, values=values)

    def log_numbers(self, event: str, *, step: int, values: Mapping[str, Any]) -> None:
        """Write the numbers among these values to the loggers alone."""
        kinds = (int, float)
        numbers = {f"{event}/{name}": float(value) for name, value in values.items() if isinstance(value, kinds)}
        for name in [*self.loggers] if numbers else []:
            self.call_logger(name, lambda logger: logger.log(step, numbers))

    def call_logger(self, name: str, function: Callable[[Logger], None]) -> None:
        """Call a logger; one that fails, such as a server that is gone, is closed: training goes on without it."""
        try:
            function(self.loggers[name])
        except Exception as error:  # of the package of others
            del self.loggers[name]
            message = " ".join(str(error).split())
            self.print_line(
                f"note: logging to {name} has failed and ends ({type(error).__name__}: {message}); training goes on, "
                f"and {METRICS} has all numbers"
            )

    def write_samples(self, step: int, pairs: Sequence[tuple[str, str]], outputs: Sequence[str]) -> None:
        """Write the outputs for the first validation pairs as one line of samples.jsonl."""
        examples = zip(pairs[:MAX_SAMPLES], outputs, strict=False)
        samples = [{"input": text, "reference": reference, "output": output} for (text, reference), output in examples]
        with (self.run / SAMPLES).open("a", encoding="utf-8") as file:
            print(json.dumps({"event": "samples", "step": step, "samples": samples}), file=file)

    def report(self, step: int, values: Mapping[str, float], *, left: float | None) -> None:
        """Log loss, learning rate and speed since the last report; `left` is the estimated time left in seconds."""
        self.record("train", step=step, values=values)
        text = (
            f"loss {values['loss']:.4f}  lr {values['lr']:.2e}  {values['tokens_per_second']:,.0f} tok/s  "
            f"left {format_duration(left)}"
        )
        if self.notebook is not None:
            self.notebook.set_progress(step, self.total, text)
        elif self.bar is not None and self.bar_task is not None:
            self.bar.update(self.bar_task, completed=step, description=text)
        else:
            self.print_line(f"step {step:,}{f'/{self.total:,}' if self.total else ''}  {text}")


def open_notebook() -> NotebookProgress | None:
    """Open the output of a training in a notebook; None elsewhere, where it is on stderr."""
    display = find_notebook_display()
    return None if display is None else NotebookProgress(display)


def format_duration(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))


def truncate_metrics(path: Path, *, step: int) -> None:
    """Drop lines after `step` and an incomplete last line, so that a resumed run logs no step twice."""
    if path.exists():
        # "average" is logged after the last checkpoint, so a resumed run logs it again
        lines = [
            line
            for line, values in read_metric_lines(path)
            if values["step"] <= step and values.get("event") != "average"
        ]
        atomic_write(path, "".join(f"{line}\n" for line in lines).encode())


# ---- before the first step


def format_banner(s: Session) -> list[str]:
    """Return what a training prints before its first step: what is trained, on what, and where the run is."""
    total = sum(parameter.numel() for parameter in s.model.parameters())
    trained = sum(parameter.numel() for parameter in s.model.parameters() if parameter.requires_grad)
    frozen = f", {trained:,} of them trained" if trained < total else ""
    facts = [f"{total:,} parameters{frozen}", *([f"{s.num_examples:,} examples"] if s.num_examples else [])]
    return [
        f"training '{s.recipe.name}' on {format_device(s.device)}: {', '.join(facts)}, {format_budget(s)}",
        f"the run is in {s.run}; learning curves: saccade watch {s.run}",
        f"Ctrl-C saves a checkpoint and stops; go on with: {s.resume_command}",
        *([s.hint] if s.hint else []),
    ]


def format_device(device: torch.device) -> str:
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"the CPU with {threads} thread{'s' * (threads > 1)}"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def format_budget(s: Session) -> str:
    """How long training goes on: steps, epochs, minutes, or until the validation no longer improves."""
    settings = s.recipe.train
    found = [
        f"{value:,g} {name}"
        for name, value in (("steps", s.total_steps), ("epochs", settings.epochs), ("minutes", settings.minutes))
        if value is not None
    ]
    return " or ".join(found) + (" or until patience ends" if settings.patience is not None else "")
