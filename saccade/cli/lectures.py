"""`saccade lectures`: the claims of the lecture notes, measured by running them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Command, Group, Json, Plugins
from saccade.cli.exits import report_errors
from saccade.cli.table import align_columns
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saccade.lectures.claims import LectureRow
    from saccade.lectures.outcomes import Outcome

EXIT_CLAIM_FAILED = 1
app = typer.Typer(
    help="Lecture notes on attention, executable: every claim is measured.", cls=Group, no_args_is_help=True
)

RowNumbers = Annotated[list[int], typer.Argument(metavar="[ROW]...", help="Row numbers of claims; default: all.")]
Train = Annotated[bool, typer.Option("--train", help="Include the claims that need training or timing (minutes).")]
EveryBreak = Annotated[bool, typer.Option("--all", help="Try every break on every claim, not only its own.")]
ListBreaks = Annotated[bool, typer.Option("--list", help="List the breaks and the claims that must notice them.")]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="Folder or name of a run.")]
Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="Input text of the model.")]
Layer = Annotated[int, typer.Option("--layer", help="Layer of the reader (encoder), counted from 1.")]
Head = Annotated[int, typer.Option("--head", help="Attention head, counted from 1.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the page, its figures and measurements.")]
Lecture = Annotated[
    str | None, typer.Option("--lecture", help="Only this set of notes, S0 to S4; named by `list --sources`.")
]
Recipe = Annotated[str | None, typer.Option("--recipe", metavar="NAME", help="Only the claims about this recipe.")]
Sources = Annotated[bool, typer.Option("--sources", help="Say where in the lecture notes each claim stands.")]


@app.command("list", cls=Command)
@report_errors()
def list_(recipe: Recipe = None, sources: Sources = False, as_json: Json = False) -> None:
    """List all claims by topic; `saccade lectures run` checks them."""
    from saccade.lectures.listing import format_claim, group_by_topic, list_claims, select_claims
    from saccade.lectures.sources import format_legend

    claims = list_claims() if recipe is None else select_claims(list_claims(), recipe)
    if as_json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=2, ensure_ascii=False))
        return
    for topic, group in group_by_topic(claims):
        print(topic, *(format_claim(one, sources=sources, width=get_width()) for one in group), "", sep="\n")
    quick, slow = (sum(claim.duration == duration for claim in claims) for duration in ("seconds", "minutes"))
    print(f"`saccade lectures run` checks {quick} of them; with --train {slow} more, which train a model [minutes]")
    if sources:
        print(f"\nS3:121 is line 121 of a plain-text transcription of S3:\n{format_legend()}")


@app.command(cls=Command)
@report_errors()
def run(
    numbers: RowNumbers = [],  # noqa: B006  # typer copies it
    train: Train = False,
    sources: Sources = False,
    as_json: Json = False,
) -> None:
    """Measure claims and print expected and measured values. Exit code 1 if a claim fails."""
    from saccade.lectures.catalogue import find_row, load_rows
    from saccade.lectures.outcomes import format_full, format_line

    chosen = [find_row(number) for number in numbers] or [row for row in load_rows() if row.measure is not None]
    outcomes = measure(chosen, train=train or bool(numbers))
    if as_json:
        print(json.dumps([item.as_dict() for item in outcomes], indent=2, ensure_ascii=False))
    else:
        full = (
            format_full(item, sources=sources) + format_table(item.result.table if item.result else ())
            for item in outcomes
        )
        print(
            "\n\n".join(full)
            if numbers
            else "\n".join([*map(format_line, outcomes), "", format_state_counts(outcomes)])
        )
    if any(item.state == "fails" for item in outcomes):
        raise SystemExit(EXIT_CLAIM_FAILED)


@app.command(cls=Command)
@report_errors()
def audit(
    numbers: RowNumbers = [],  # noqa: B006  # typer copies it
    train: Train = False,
    every: EveryBreak = False,
    listed: ListBreaks = False,
    as_json: Json = False,
) -> None:
    """Break saccade's code in many ways: each claim must then fail. Exit code 1 if one does not."""
    from saccade.lectures.audit import audit_rows, find_weak_rows, list_breaks, tabulate
    from saccade.lectures.catalogue import find_row, load_rows

    chosen = [find_row(number) for number in numbers] or [row for row in load_rows() if train or not row.trains]
    chosen = [row for row in chosen if row.measure is not None]
    if not chosen:
        raise SaccadeError(
            f"row {numbers[0]} is prose without a check; `saccade lectures list` shows which rows have one"
        )
    if listed:
        print(align_columns(list_breaks(chosen)))
        return
    trials = []
    for trial in audit_rows(chosen, every=every):
        trials.append(trial)
        if trial.state != "fails" and not every:
            print(f"row {trial.row.row}: {trial.state} under {trial.fault.name}", file=sys.stderr)
    weak = find_weak_rows(chosen, trials)
    if as_json:
        print(json.dumps([trial.as_dict() for trial in trials], indent=2, ensure_ascii=False))
    else:
        print(align_columns(tabulate(chosen, trials)))
        noticed = sum(trial.state == "fails" for trial in trials)
        print(f"\n{len(chosen)} rows, {noticed} of {len(trials)} breaks noticed")
        print("\n".join(f"row {number} is weak: {reason}" for number, reason in weak.items()))
    if weak:
        raise SystemExit(EXIT_CLAIM_FAILED)


@app.command(cls=Command)
@report_errors()
def trace(
    run: Run = None,
    text: Text = None,
    layer: Layer = 1,
    head: Head = 1,
    plugin: Plugins = [],  # noqa: B006  # typer copies it
) -> None:
    """Print Q, K, V, E, A and Y of one attention head: of an example computable by hand, or of a run on TEXT."""
    from saccade.lectures.trace import format_trace, trace_example, trace_run

    if run is None:
        print(format_trace(trace_example(), width=get_width()))
        return
    if text is None:
        raise SaccadeError(f'trace needs an input for the run: saccade lectures trace {run} "a text"')
    from saccade.cli.predict import load_predictor

    matrices, words = trace_run(load_predictor([run], plugins=plugin), text, layer=layer, head=head)
    print(format_trace(matrices, words, width=get_width()))


@app.command(cls=Command)
@report_errors()
def report(out: Out, lecture: Lecture = None, train: Train = False) -> None:
    """Write all claims in slide order as one HTML page: formulas, measurements, figures, code, errata."""
    from saccade.lectures.report import collect_rows, write_report
    from saccade.lectures.sources import load_notes

    chosen = list(load_notes()) if lecture is None else [lecture]
    print(write_report(measure(collect_rows(chosen), train=train), out, lectures=chosen))


def get_width() -> int | None:
    """Return the columns of the terminal; None if the output goes elsewhere, where lines are not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def measure(rows: Sequence[LectureRow], *, train: bool) -> list[Outcome]:
    """Measure all rows, with a line on stderr for each that takes longer than two seconds."""
    from saccade.lectures.outcomes import run_checks

    measured = []
    for item in run_checks(rows, train=train):
        measured.append(item)
        if item.seconds > 2:
            print(f"row {item.row.row}: {item.state}, {item.seconds:.0f} s", file=sys.stderr)
    return measured


def format_table(table: Sequence[Sequence[str]]) -> str:
    return f"\n\n{align_columns(table)}" if table else ""


def format_state_counts(outcomes: Sequence[Outcome]) -> str:
    """Count the rows in each state, as in `2 holds, 1 prose`."""
    states = [item.state for item in outcomes]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
