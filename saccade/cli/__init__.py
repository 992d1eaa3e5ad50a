"""The verbs: each parses, calls the library, prints. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from saccade.cli import lectures, recipes
from saccade.cli.arguments import gather
from saccade.cli.exchange import export_model, import_model
from saccade.cli.ladder import ladder
from saccade.cli.leave import telling
from saccade.cli.plan import plan
from saccade.cli.predict import predict
from saccade.cli.runs import runs
from saccade.cli.score import compare, evaluate
from saccade.cli.serve import serve
from saccade.cli.train import demo, train
from saccade.cli.view import view
from saccade.cli.watch import watch

app = typer.Typer(
    name="saccade",
    help="Attention models: read something, attend to it, write something. Start with: saccade demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (demo, train, watch, predict, evaluate, compare, ladder, view, serve, plan, runs):
    app.command()(telling()(verb))
app.command("import")(telling()(import_model))
app.command("export")(telling()(export_model))
app.add_typer(recipes.app, name="recipes")
app.add_typer(lectures.app, name="lectures")


def _version(asked: bool) -> None:
    if asked:
        from saccade import __version__

        print(f"saccade {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)]


@app.callback()
def _before(version: Version = False) -> None: ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb and leaves with its exit code."""
    with telling():
        words = gather(sys.argv[1:] if arguments is None else arguments)
    app(words, prog_name="saccade")
