"""`saccade train` and `saccade demo`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from saccade.cli.arguments import Data, Valid, corpora, is_override, overrides
from saccade.cli.table import aligned
from saccade.cli.watch import shown_while_training
from saccade.errors import SaccadeError

Recipe = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A name of `saccade recipes`, or a .toml file.")]
Changes = Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="Such as train.steps=2000.")]
RunName = Annotated[str | None, typer.Option("--run", metavar="NAME", help="Name of the run; default RECIPE-N.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="A small model on embedded data: three minutes at most.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run; needs no recipe.")]
Watch = Annotated[bool, typer.Option("--watch", help="Serve a page that shows how it learns.")]
DemoName = Annotated[str, typer.Argument(metavar="NAME", help="A name of --list; without it, dates.")]
Listed = Annotated[bool, typer.Option("--list", help="List what can be shown: name, embedded data, what it is.")]
Seed = Annotated[int, typer.Option(min=0, help="Of data, weights and order.")]


def train(
    recipe: Recipe = None,
    changes: Changes = [],  # noqa: B006  # typer copies it
    data: Data = [],  # noqa: B006
    valid: Valid = [],  # noqa: B006
    run: RunName = None,
    tiny: Tiny = False,
    resume: Resume = None,
    watch: Watch = False,
) -> None:
    """Train a model, or go on training one."""
    if recipe is not None and is_override(recipe):
        changes, recipe = [recipe, *changes], None
    if recipe is None and resume is None:
        raise SaccadeError("train needs a recipe (`saccade recipes` lists them), or --resume RUN to go on with a run")
    files, more = validation(valid)
    chosen = [*overrides(changes), *more, *(["train.watch=true"] if watch else [])]
    with shown_while_training() if watch else nullcontext():
        from saccade.train.api import train as run_training

        data_files = corpora(data) or None
        run_training(recipe, data=data_files, valid=files, run=run, tiny=tiny, resume=resume, overrides=chosen)


def validation(valid: list[str]) -> tuple[list[list[str]] | None, list[str]]:
    """Files of `--valid`, or the override that `--valid 0.01` stands for: a share of the training pairs held out."""
    files = corpora(valid)
    try:
        [[text]] = files
        return None, [f"data.valid={float(text)}"]
    except ValueError:
        return files or None, []


def demo(name: DemoName = "dates", run: RunName = None, seed: Seed = 1, listed: Listed = False) -> None:
    """Train a small model on embedded data in a minute or three, and look at what it learned."""
    if listed:
        from saccade.demo.listing import demonstrations

        print(aligned([(one.name, one.data, str(one.target), one.about) for one in demonstrations()]))
    elif name == "dates":
        from saccade.demo.dates import run_demo

        run_demo(run=run, seed=seed)
    else:
        from saccade.demo.systems import show

        show(name, run=run, seed=seed)
