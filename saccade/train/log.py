"""What a run tells: metrics.jsonl, a progress bar or plain lines on stderr, TensorBoard."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from saccade.files import atomic_write
from saccade.runs import METRICS, SAMPLES, metric_lines

SHOWN = 8  # validation texts whose outputs are kept


class Log:
    """Writes every report and validation as one line of JSON, flushed, and shows it."""

    def __init__(self, run: Path, *, total: int | None, tensorboard: bool = False, quiet: bool = False) -> None:
        self.run, self.total, self.quiet, self.tensorboard = run, total, quiet, tensorboard
        self.begin = 0  # the step that a resumed run goes on from
        self.board: Any = None
        self.bar: Progress | None = None
        self.shown: TaskID | None = None
        self.file: TextIO | None = None

    def __enter__(self) -> Log:
        if not self.quiet:
            if self.tensorboard:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(self.run / "tensorboard"), purge_step=self.begin + 1)
            self.file = (self.run / METRICS).open("a", encoding="utf-8")
            if sys.stderr.isatty():
                columns = (TextColumn("step {task.completed:,}"), BarColumn(), TextColumn("{task.description}"))
                self.bar = Progress(*columns, console=Console(stderr=True))
                self.shown = self.bar.add_task("", total=self.total)
                self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.file is not None:
            self.file.close()
        if self.board is not None:
            self.board.close()

    def say(self, text: str) -> None:
        """One line for the person in front of it, above the bar where there is one."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def advance(self, step: int) -> None:
        if self.bar is not None and self.shown is not None:
            self.bar.update(self.shown, completed=step)

    def record(self, event: str, *, step: int, values: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl, and the numbers of it for TensorBoard."""
        if self.file is not None:
            print(json.dumps({"event": event, "step": step, **values}), file=self.file, flush=True)
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(f"{event}/{name}", value, step)

    def keep_samples(self, step: int, pairs: Sequence[tuple[str, str]], outputs: Sequence[str]) -> None:
        """What was written for the first validation pairs, as one line of samples.jsonl."""
        kept = zip(pairs[:SHOWN], outputs, strict=False)
        samples = [{"input": text, "reference": wanted, "output": output} for (text, wanted), output in kept]
        with (self.run / SAMPLES).open("a", encoding="utf-8") as file:
            print(json.dumps({"event": "samples", "step": step, "samples": samples}), file=file)

    def report(self, step: int, values: Mapping[str, float], *, left: float | None) -> None:
        """Loss, learning rate and speed since the last report; `left` is an estimate in seconds."""
        self.record("train", step=step, values=values)
        text = (
            f"loss {values['loss']:.4f}  lr {values['lr']:.2e}  {values['tokens_per_second']:,.0f} tok/s  "
            f"left {clock(left)}"
        )
        if self.bar is not None and self.shown is not None:
            self.bar.update(self.shown, completed=step, description=text)
        else:
            self.say(f"step {step:,}{f'/{self.total:,}' if self.total else ''}  {text}")


def clock(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))


def cut_metrics(path: Path, *, step: int) -> None:
    """Drops the lines after `step` and a half-written last one, so that a resumed run repeats no step."""
    if path.exists():
        # "average" is written after the last checkpoint, so it comes again
        kept = [line for line, values in metric_lines(path) if values["step"] <= step and values["event"] != "average"]
        atomic_write(path, "".join(f"{line}\n" for line in kept).encode())
