"""`saccade lectures`: the notes, executable."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json
from saccade.cli.leave import telling
from saccade.cli.table import aligned
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saccade.lectures.claims import Row
    from saccade.lectures.outcomes import Outcome

FAILED = 1
app = typer.Typer(help="The lecture notes, executable: every claim of theirs is measured.", no_args_is_help=True)

Numbers = Annotated[list[int], typer.Argument(metavar="[ROW]...", help="Numbers of rows; without any, all of them.")]
Train = Annotated[bool, typer.Option("--train", help="Also the rows that train or time something: some minutes.")]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="What the model reads.")]
Layer = Annotated[int, typer.Option("--layer", help="Of the reader, counted from 1.")]
Head = Annotated[int, typer.Option("--head", help="Counted from 1.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the page, its pictures and numbers.")]
Lecture = Annotated[str | None, typer.Option("--lecture", help="One lecture only: S0, S1, S2, S3 or S4.")]


@app.command("list")
@telling()
def list_(as_json: Json = False) -> None:
    """All rows of the lectures with their state; the quick ones are measured for it."""
    from saccade.lectures.catalogue import rows

    found = measure(rows(), train=False)
    if as_json:
        keys = ("row", "lecture", "sentence", "state")
        print(json.dumps([{key: item.as_dict()[key] for key in keys} for item in found], indent=2, ensure_ascii=False))
        return
    table = [(str(item.row.row), item.state, item.row.where, item.row.sentence) for item in found]
    print(aligned([("row", "state", "lecture", "sentence"), *table]))
    print(f"\n{tally(found)}")


@app.command()
@telling()
def run(numbers: Numbers = [], train: Train = False, as_json: Json = False) -> None:  # noqa: B006  # typer copies it
    """Measure rows: what was expected, what came out. Leaves with exit code 1 where a row fails."""
    from saccade.lectures.catalogue import find, rows
    from saccade.lectures.outcomes import as_line, in_full

    chosen = [find(number) for number in numbers] or [row for row in rows() if row.measure is not None]
    found = measure(chosen, train=train or bool(numbers))
    if as_json:
        print(json.dumps([item.as_dict() for item in found], indent=2, ensure_ascii=False))
    else:
        full = (in_full(item) + printed(item.measured.table if item.measured else ()) for item in found)
        print("\n\n".join(full) if numbers else "\n".join([*map(as_line, found), "", tally(found)]))
    if any(item.state == "fails" for item in found):
        raise SystemExit(FAILED)


@app.command()
@telling()
def trace(run: Run = None, text: Text = None, layer: Layer = 1, head: Head = 1) -> None:
    """Print Q, K, V, E, A and Y on numbers that can be checked by hand, or of a run that reads a text."""
    from saccade.lectures.trace import of_run, shown, worked

    if run is None:
        print(shown(worked()))
        return
    if text is None:
        raise SaccadeError(f'trace needs a text for the run to read: saccade lectures trace {run} "a text"')
    from saccade.cli.predict import load

    found, words = of_run(load([run]), text, layer=layer, head=head)
    print(shown(found, words))


@app.command()
@telling()
def report(out: Out, lecture: Lecture = None, train: Train = False) -> None:
    """Write the rows in slide order as one page: formulas, numbers, pictures, code, errata."""
    from saccade.lectures.catalogue import lectures
    from saccade.lectures.report import needed, write_report

    chosen = list(lectures()) if lecture is None else [lecture]
    print(write_report(measure(needed(chosen), train=train), out, lectures=chosen))


def measure(rows: Sequence[Row], *, train: bool) -> list[Outcome]:
    """All of them, with a line of progress for each that takes a while."""
    from saccade.lectures.outcomes import outcomes

    found = []
    for item in outcomes(rows, train=train):
        found.append(item)
        if item.seconds > 2:
            print(f"row {item.row.row}: {item.state}, {item.seconds:.0f} s", file=sys.stderr)
    return found


def printed(table: Sequence[Sequence[str]]) -> str:
    return f"\n\n{aligned(table)}" if table else ""


def tally(found: Sequence[Outcome]) -> str:
    """How many rows are in which state."""
    states = [item.state for item in found]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
