"""`saccade recipes`: list, show, copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.leave import telling
from saccade.errors import SaccadeError

app = typer.Typer(help="List, show and copy the recipes that come with saccade.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `saccade recipes`.")]
Target = Annotated[Path | None, typer.Argument(metavar="FILE", help="The new file; default NAME.toml here.")]


@app.callback()
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
@telling()
def list_() -> None:
    """The recipes and what they are."""
    from saccade.config.load import read, shipped, shipped_path

    width = max(map(len, shipped()))
    for name in shipped():
        print(f"{name:<{width}}  {read(shipped_path(name)).get('about', '')}")


@app.command()
@telling()
def show(name: Name) -> None:
    """A recipe as it is written."""
    from saccade.config.load import shipped_path

    print(shipped_path(name).read_text(encoding="utf-8"), end="")


@app.command()
@telling()
def copy(name: Name, target: Target = None) -> None:
    """Copy a recipe, to change it and train it: saccade train FILE.toml."""
    from saccade.config.load import shipped_path

    text = shipped_path(name).read_text(encoding="utf-8")
    target = target or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise SaccadeError(f"a recipe's file name ends in .toml, got '{target}'")
    if target.exists():
        raise SaccadeError(f"'{target}' exists already; give another name")
    target.write_text(text, encoding="utf-8")
    print(target)
