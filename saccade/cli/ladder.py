"""`saccade ladder`: train a series of architectures on the same data and compare them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Data, Json, Plugins, Valid, check_overrides, parse_corpora
from saccade.cli.train import parse_validation
from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError
from saccade.runs import get_runs_folder

if TYPE_CHECKING:
    from saccade.ladder.data import LadderData
    from saccade.ladder.results import Ladder

MIN_TABLE_WIDTH = 160  # characters, also on a narrower terminal: cells are never truncated

Overrides = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE", help="Overrides for all rungs, such as train.steps=2000.")
]
Rungs = Annotated[str, typer.Option("--rungs", metavar="A,B,...", help="Train only these rungs; default: all.")]
Test = Annotated[
    list[str], typer.Option("--test", metavar="SRC [TGT]", help="Test data on which all rungs are compared.")
]
Size = Annotated[
    str, typer.Option("--size", metavar="class|full", help="Model size: class (small, default without --data) or full.")
]
Length = Annotated[
    int | None,
    typer.Option("--length", metavar="N", help="Maximum length of the synthetic letter sequences; default 20."),
]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", help="Train each rung with seeds 1 to N.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report; default runs/ladder.")
]


def ladder(  # noqa: PLR0913  # the options of a command are its parameters
    overrides: Overrides = [],  # noqa: B006  # typer copies it
    rungs: Rungs = "",
    data: Data = [],  # noqa: B006
    valid: Valid = [],  # noqa: B006
    test: Test = [],  # noqa: B006
    size: Size = "",
    length: Length = None,
    seeds: Seeds = 1,
    out: Out = None,
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Train a ladder of architectures, from no attention to the Transformer, on the same data, and compare them."""
    from saccade.ladder.report import write_report
    from saccade.ladder.rungs import choose_rungs
    from saccade.ladder.train import train_ladder

    size = size or ("full" if data else "class")
    names = [name.strip() for name in rungs.split(",") if name.strip()]
    if rungs and not names:
        raise SaccadeError(f"--rungs names no rung, got '{rungs}'; give some as A,B, or leave it out to train all")
    chosen = choose_rungs(names, size=size)
    loaded = load_data(data, valid, test, size=size, length=length)
    folder = out or get_runs_folder() / "ladder"
    results = train_ladder(
        loaded, chosen, folder, seeds=seeds, overrides=check_overrides(overrides), kinds=load_plugins(*plugin),
        report=print_progress,
    )  # fmt: skip
    report_path = write_report(results, folder)
    if as_json:
        print(json.dumps(results.to_dict(), indent=2))
    else:
        print_results(results, report_path)


def print_progress(message: str) -> None:
    print(message, file=sys.stderr)


def load_data(
    data: Sequence[str], valid: list[str], test: Sequence[str], *, size: str, length: int | None
) -> LadderData:
    """Load the data that all rungs share: synthetic letter sequences, or the user's files."""
    from saccade.ladder.data import DEFAULT_LETTERS, build_files_data, build_letters_data

    if not data and not valid and not test:
        return build_letters_data(DEFAULT_LETTERS if length is None else length, size=size)
    if length is not None:
        raise SaccadeError("--length is for the synthetic letter sequences; leave it out with --data")
    files, fraction = parse_validation(valid)
    held_out = float(fraction[0].partition("=")[2]) if fraction else files
    return build_files_data(parse_corpora(data), held_out, parse_corpora(test), size=size)


def print_results(results: Ladder, report_path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from saccade.ladder.report import format_note, format_table

    console = Console(highlight=False)
    console.width = max(console.width, MIN_TABLE_WIDTH)
    titles, *rows = format_table(results)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"\n{format_note(results)}\nreport, plot and all scores: {report_path}", soft_wrap=True, markup=False)
