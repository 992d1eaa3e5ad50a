"""`saccade plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json, overrides
from saccade.cli.table import aligned
from saccade.cli.train import Changes, Recipe
from saccade.errors import SaccadeError
from saccade.runs import RECIPE, WEIGHTS, find_run

if TYPE_CHECKING:
    from saccade.plan.estimate import Plan

Vocabulary = Annotated[int | None, typer.Option("--vocabulary", metavar="N", help="Pieces; default tokenizer.size.")]
Tokens = Annotated[float | None, typer.Option("--tokens", metavar="N", help="Trained on; default all steps, full.")]
Length = Annotated[int | None, typer.Option("--length", metavar="N", help="Tokens of a text, for attention's scores.")]
Gpu = Annotated[str, typer.Option("--gpu", metavar="NAME", help="Such as H200, A100 or RTX-4090.")]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", help="How many of them.")]
Price = Annotated[float | None, typer.Option("--price", metavar="USD", help="Of one GPU for an hour.")]
Mfu = Annotated[float | None, typer.Option("--mfu", metavar="SHARE", help="Of a large product's speed.")]
Tabled = Annotated[bool, typer.Option("--table", help="The lectures' table of larger and larger models, counted.")]


def plan(  # noqa: PLR0913  # the options of a verb are its parameters
    recipe: Recipe = None,
    changes: Changes = [],  # noqa: B006  # typer copies it
    vocabulary: Vocabulary = None,
    tokens: Tokens = None,
    length: Length = None,
    gpu: Gpu = "H200",
    gpus: Gpus = 1,
    price: Price = None,
    mfu: Mfu = None,
    table: Tabled = False,
    as_json: Json = False,
) -> None:
    """Say what training a recipe takes: parameters, operations, memory, time, money."""
    if table:
        if recipe is not None:
            raise SaccadeError(f"--table is one table of all models of the lectures; leave '{recipe}' out, or --table")
        show_table(as_json=as_json)
        return
    if recipe is None:
        raise SaccadeError("plan needs a recipe (`saccade recipes` lists them), a run, or --table")
    from saccade.config.load import load
    from saccade.plan.estimate import Asked, make_plan, vocabulary_of

    run = run_of(recipe)
    said = load(recipe if run is None else run / RECIPE, overrides=overrides(changes))
    if run is not None and vocabulary is None:
        vocabulary = vocabulary_of(said, run)
    found = make_plan(said, Asked(vocabulary, tokens, length, gpu, gpus, price, mfu))
    print(json.dumps(found.as_dict(), indent=2) if as_json else in_words(found))


def run_of(name: str) -> Path | None:
    """The folder of a run, named by itself or by the recipe in it; a recipe that comes with saccade is none."""
    from saccade.config.load import shipped

    found = find_run(name)
    folder = found.parent if found.name == RECIPE else found
    return folder if name not in shipped() and (folder / RECIPE).is_file() and (folder / WEIGHTS).is_file() else None


def in_words(found: Plan) -> str:
    from saccade.plan.show import columns, sections

    parts = [f"{title}\n{indented(aligned(columns(rows)))}" for title, rows in sections(found)]
    return "\n\n".join(parts)


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def show_table(*, as_json: bool) -> None:
    from saccade.lectures.scale.growth import as_dicts, cost_lines, table_rows

    if as_json:
        print(json.dumps(as_dicts(), indent=2, ensure_ascii=False))
        return
    print(aligned(table_rows()))
    print("\n" + "\n".join(cost_lines()))
