"""`saccade predict --corpus`: decode all rows of a folder of files, by a pool of processes or on Ray."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from rich.progress import Progress

    from saccade.config.schema import Decoding
    from saccade.predict.corpora.parts import Part
    from saccade.predict.corpora.process import CorpusSettings
    from saccade.predict.predictors.predictor import Predictor

LINE_SECONDS = 10.0  # between two lines of progress where stderr is no terminal
ON_ERROR = ("stop", "skip")

CorpusName = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="PATH",
        help="Decode all rows of a file, a folder, a pattern such as 'shards/*.jsonl', or a URL of these, in parts; "
        "finished parts are skipped when it is started again.",
    ),
]
Column = Annotated[
    str | None, typer.Option("--column", metavar="NAME", help="--corpus: the column of the texts; default: text.")
]
Processes = Annotated[
    int, typer.Option("--processes", min=1, max=1024, help="--corpus: number of processes that decode.")
]
OnError = Annotated[
    str,
    typer.Option(
        "--on-error",
        metavar="stop|skip",
        help="--corpus: stop at a row that cannot be decoded, or list it in a file and write an empty output.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="--corpus: decode on a Ray cluster (auto: the one of this machine, or local)."
    ),
]


class ModelOptions(NamedTuple):
    """Which runs are loaded, and how."""

    runs: list[str]
    engine: str
    precision: str
    plugins: Sequence[str]


class CorpusOptions(NamedTuple):
    """The options of `--corpus`."""

    corpus: str | None
    output: str | None
    column: str | None
    processes: int
    on_error: str
    ray: str | None
    as_json: bool


def check_corpus_options(options: CorpusOptions, others: Mapping[str, Any]) -> None:
    """Raise for options that do not go together."""
    if options.corpus is None:
        own = {"--column": options.column, "--processes": options.processes != 1, "--ray": options.ray}
        for name, value in {**own, "--on-error": options.on_error != "stop"}.items():
            if value:
                raise SaccadeError(f"{name} is for --corpus PATH, which is not given; give it, or leave {name} out")
        return
    for name, value in others.items():
        if value:
            raise SaccadeError(f"--corpus does not go with {name}; leave one of them out")
    if options.output is None:
        raise SaccadeError("--corpus needs a folder for the outputs; give it by --output DIR")
    if options.on_error not in ON_ERROR:
        raise SaccadeError(f"--on-error {options.on_error}: expected {' or '.join(ON_ERROR)}")


def predict_corpus(predictor: Predictor, decoding: Decoding, model: ModelOptions, options: CorpusOptions) -> None:
    """Decode all parts of a corpus that are not yet decoded."""
    from saccade.predict.corpora import parts as corpus_parts
    from saccade.predict.corpora.process import CorpusSettings

    check_reads_texts(predictor, decoding, as_json=options.as_json)
    output = Path(options.output or "")
    files = corpus_parts.list_files(options.corpus or "")
    part_bytes = corpus_parts.choose_part_bytes(files)
    settings = CorpusSettings(
        runs=[str(path) for path in get_run_folders(model)], output=str(output.absolute()),
        decoding=decoding.model_dump(mode="json"), engine=model.engine, precision=model.precision,
        plugins=tuple(os.path.abspath(name) for name in model.plugins), column=options.column,
        as_json=options.as_json, skip_bad_rows=options.on_error == "skip",
    )  # fmt: skip
    corpus_parts.prepare_output(output, describe_settings(settings, files, part_bytes))
    with corpus_parts.lock_output(output):
        parts = corpus_parts.split_into_parts(files, part_bytes=part_bytes)
        left = [part for part in parts if not (output / f"{part.name}{settings.suffix}").exists()]
        if len(left) < len(parts):
            print(f"{len(parts) - len(left):,} of {len(parts):,} parts are finished already", file=sys.stderr)
        summary = Summary()
        with show_progress(parts, left) as progress:
            for reply in run_parts(settings, left, options, progress) if left else ():
                progress.update(reply)
                if "done" in reply:
                    summary.add(reply["done"])
        rows = sum(corpus_parts.count_lines(output / f"{part.name}{settings.suffix}") for part in parts)
    summary.report(predictor, output)
    print(f"{rows:,} outputs in {len(parts):,} part{'s' * (len(parts) != 1)} in {output}", file=sys.stderr)


def check_reads_texts(predictor: Predictor, decoding: Decoding, *, as_json: bool) -> None:
    predictor.check_writes()
    if predictor.medium or predictor.fields or predictor.shows_input_names:
        raise SaccadeError("--corpus is for runs that read texts; give files and folders of other runs as inputs")
    if decoding.n_best > 1 and not as_json:
        raise SaccadeError(f"--corpus writes one line for each row, but n_best is {decoding.n_best}; give --json too")


def get_run_folders(model: ModelOptions) -> list[Path]:
    from saccade.runs import find_run

    return [find_run(name).absolute() for name in model.runs if name]


def describe_settings(settings: CorpusSettings, files: Sequence[Path], part_bytes: int) -> dict[str, Any]:
    """Describe what outputs depend on, for a second start."""
    from saccade.predict.corpora.parts import hash_weights
    from saccade.runs import WEIGHTS

    return {
        "runs": [hash_weights(Path(run) / WEIGHTS) for run in settings.runs],
        "decoding": settings.decoding,
        "precision": settings.precision,
        "column": settings.column,
        "format": settings.suffix,
        "on_error": settings.skip_bad_rows,
        "files": [[str(path), path.stat().st_size] for path in files],
        "part_bytes": part_bytes,
    }


def run_parts(
    settings: CorpusSettings, parts: Sequence[Part], options: CorpusOptions, progress: ProgressDisplay
) -> Iterator[dict[str, Any]]:
    if options.ray is not None:
        from saccade.predict.corpora.on_ray import run_on_ray

        return run_on_ray(settings, parts, processes=options.processes, address=options.ray)
    from saccade.predict.corpora.pool import run_pool

    return run_pool(settings, parts, processes=options.processes, warn=progress.print)


class Summary:
    """What was unusual about the outputs."""

    def __init__(self) -> None:
        self.rows, self.bad, self.lengths = 0, 0, Counter[int]()

    def add(self, done: Mapping[str, Any]) -> None:
        self.rows += done["rows"]
        self.bad += done["bad"]
        self.lengths.update({int(length): count for length, count in done["truncated"].items()})

    def report(self, predictor: Predictor, output: Path) -> None:
        from saccade.predict.outputs import format_truncation_message

        if self.lengths and not predictor.continues_prompts:
            lengths = [*self.lengths.elements()]
            message = format_truncation_message(lengths, self.rows, max_length=predictor.recipe.data.max_length)
            print(message, file=sys.stderr)
        if self.bad:
            print(f"{self.bad:,} rows were skipped; {output}/*.errors.jsonl have their files and rows", file=sys.stderr)


class ProgressDisplay:
    """A progress bar on a terminal, or a line now and then; by bytes of the files, with rows and rows per second."""

    def __init__(self, bar: Progress | None, parts: Sequence[Part], left: Sequence[Part]) -> None:
        self.bar, self.sizes = bar, {part.number: part.num_bytes for part in parts}
        self.total = sum(self.sizes.values())
        self.done = self.total - sum(part.num_bytes for part in left)
        self.rows, self.finished_rows = 0, 0
        self.running: dict[int, Mapping[str, Any]] = {}  # the last reply about each part
        self.start = self.last_line = time.monotonic()
        self.bar_id = bar.add_task("", total=self.total, completed=self.done, rows="") if bar else None

    def update(self, reply: Mapping[str, Any]) -> None:
        if "done" in reply:
            self.running.pop(reply["part"], None)
            self.done += self.sizes[reply["part"]]
            self.finished_rows += reply["done"]["rows"]
        else:
            self.running[reply["part"]] = reply
        self.rows = self.finished_rows + sum(each["rows"] for each in self.running.values())
        partly = sum(min(each["characters"], self.sizes[number]) for number, each in self.running.items())
        done = self.done + partly
        rate = self.rows / max(1e-9, time.monotonic() - self.start)
        text = f"{self.rows:,} rows, {rate:,.0f} rows/s"
        if self.bar is not None and self.bar_id is not None:
            self.bar.update(self.bar_id, completed=done, rows=text)
        elif time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            self.print(f"{text}, {done / max(1, self.total):.0%}")

    def print(self, text: str) -> None:
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


@contextmanager
def show_progress(parts: Sequence[Part], left: Sequence[Part]) -> Iterator[ProgressDisplay]:
    if not sys.stderr.isatty():
        yield ProgressDisplay(None, parts, left)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rows]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield ProgressDisplay(bar, parts, left)
