"""The command line: each command parses its arguments, calls the library and prints.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from saccade.cli import lectures
from saccade.cli.arguments import Command, Group, join_paired_values
from saccade.cli.backtranslate import backtranslate
from saccade.cli.distill import distill
from saccade.cli.exchange import export_model, import_model
from saccade.cli.exits import check_arguments, open_standard_streams, report_errors
from saccade.cli.ladder import ladder
from saccade.cli.listing import recipes
from saccade.cli.listing.explain import explain
from saccade.cli.listing.runs import runs
from saccade.cli.plan import plan
from saccade.cli.predict import predict
from saccade.cli.reproduce import reproduce
from saccade.cli.score import compare, evaluate
from saccade.cli.serve import serve
from saccade.cli.sweep import sweep
from saccade.cli.train import demo, train
from saccade.cli.view import view
from saccade.cli.watch import watch

app = typer.Typer(
    name="saccade",
    cls=Group,
    help="Train, decode, evaluate and visualize attention models. Start with: saccade demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    train,
    sweep,
    watch,
    predict,
    backtranslate,
    distill,
    evaluate,
    compare,
    ladder,
    reproduce,
    view,
    serve,
    plan,
    explain,
    runs,
):
    app.command(cls=Command)(report_errors()(command))
app.command("import", cls=Command)(report_errors()(import_model))
app.command("export", cls=Command)(report_errors()(export_model))
app.add_typer(recipes.app, name="recipes")
app.add_typer(lectures.app, name="lectures")


def _print_version(requested: bool) -> None:
    if requested:
        from saccade import __version__

        print(f"saccade {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
]


@app.callback()
def _parse_global_options(version: Version = False) -> None: ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its exit code."""
    atexit.register(gc.freeze)  # Python would look for garbage among all objects of torch, which takes 0.4 s
    open_standard_streams()
    with report_errors():
        app(join_paired_values(check_arguments(sys.argv[1:] if arguments is None else arguments)), prog_name="saccade")
