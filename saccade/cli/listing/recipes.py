"""`saccade recipes`: list, show and copy the recipes that come with saccade."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.arguments import Command, Group
from saccade.cli.exits import report_errors
from saccade.cli.table import align_columns
from saccade.errors import SaccadeError

app = typer.Typer(
    help="List, show and copy the recipes that come with saccade.", cls=Group, invoke_without_command=True
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe, see `saccade recipes`.")]
Target = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="File to write; default: NAME.toml in the current folder.")
]


@app.callback()
def _list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_()


@app.command("list", cls=Command)
@report_errors()
def list_() -> None:
    """List all recipes with a one-line description."""
    from saccade.config.load import describe_recipes

    print(align_columns([(entry.name, entry.about) for entry in describe_recipes()]))


@app.command(cls=Command)
@report_errors()
def show(name: Name) -> None:
    """Print a recipe."""
    from saccade.config.load import get_recipe_path

    print(get_recipe_path(name).read_text(encoding="utf-8"), end="")


@app.command(cls=Command)
@report_errors()
def copy(name: Name, target: Target = None) -> None:
    """Copy a recipe to a file, to edit it and train it with saccade train FILE.toml."""
    from saccade.config.load import get_recipe_path

    text = get_recipe_path(name).read_text(encoding="utf-8")
    target = target or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise SaccadeError(f"a recipe's file name ends in .toml, got '{target}'")
    if target.exists():
        raise SaccadeError(f"'{target}' exists already; give another name")
    target.write_text(text, encoding="utf-8")
    print(target)
