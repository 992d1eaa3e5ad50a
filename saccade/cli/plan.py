"""`saccade plan`: estimate parameters, FLOPs, memory, time and cost of training a recipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.arguments import Json, Plugins, check_overrides
from saccade.cli.table import align_columns
from saccade.cli.train import Overrides, Paper, Tiny
from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.plan.estimate import Plan

RecipeOrRun = Annotated[
    str | None, typer.Argument(metavar="RECIPE|RUN", help="Name of a recipe, a .toml file, or a run.")
]
Vocabulary = Annotated[
    int | None, typer.Option("--vocabulary", metavar="N", help="Vocabulary size; default tokenizer.size.")
]
Tokens = Annotated[
    float | None, typer.Option("--tokens", metavar="N", help="Training tokens; default: train.steps full batches.")
]
Length = Annotated[
    int | None, typer.Option("--length", metavar="N", help="Sequence length, for the cost of the attention scores.")
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="GPU model, such as H200, A100 or RTX-4090. cpu, the default where there is no GPU: also measure training "
        "steps on this CPU.",
    ),
]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", help="Number of GPUs.")]
Price = Annotated[float | None, typer.Option("--price", metavar="USD", help="Price of one GPU hour in US dollars.")]
Mfu = Annotated[
    float | None,
    typer.Option(
        "--mfu", metavar="SHARE", help="Model FLOPs utilization: fraction of the speed of a large matrix product."
    ),
]
ShowTable = Annotated[
    bool, typer.Option("--table", help="Print a table of growing models, Transformer to Gopher, as counted here.")
]


def plan(  # noqa: PLR0913  # the options of a command are its parameters
    recipe: RecipeOrRun = None,
    overrides: Overrides = [],  # noqa: B006  # typer copies it
    tiny: Tiny = False,
    paper: Paper = False,
    vocabulary: Vocabulary = None,
    tokens: Tokens = None,
    length: Length = None,
    gpu: Gpu = None,
    gpus: Gpus = 1,
    price: Price = None,
    mfu: Mfu = None,
    table: ShowTable = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Estimate what training a recipe takes: parameters, FLOPs, memory, time and cost."""
    if table:
        if recipe is not None:
            raise SaccadeError(f"--table takes no recipe, got '{recipe}'; leave one of the two out")
        print_table(as_json=as_json)
        return
    if recipe is None:
        raise SaccadeError("plan needs a recipe (`saccade recipes` lists them), a run, or --table")
    from saccade.plan.api import plan as estimate_training

    estimate = estimate_training(
        recipe, overrides=check_overrides(overrides), tiny=tiny, paper=paper, vocabulary=vocabulary, tokens=tokens,
        length=length, gpu=gpu, gpus=gpus, price=price, mfu=mfu, kinds=load_plugins(*plugin),
    )  # fmt: skip
    print(json.dumps(estimate.as_dict(), indent=2) if as_json else format_plan(estimate))
    if paper and not as_json:
        print(f"\n{format_paper(recipe)}")


def format_paper(recipe: str) -> str:
    """What the paper of a recipe says of its size, and what differs here."""
    from saccade.config.load import read_paper_form

    form = read_paper_form(recipe)
    assert form is not None, "the recipe was loaded in this form"
    stated = "no number of parameters" if form.parameters is None else f"{form.parameters:,.0f} parameters"
    return f"the paper states {stated}" + (f"; {form.difference}" if form.difference else "")


def format_plan(plan: Plan) -> str:
    from saccade.plan.show import build_sections, pad_rows

    parts = [f"{title}\n{indent(align_columns(pad_rows(rows)))}" for title, rows in build_sections(plan)]
    return "\n\n".join(parts)


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def print_table(*, as_json: bool) -> None:
    from saccade.lectures.scale.growth import build_table, format_cost, to_dict

    if as_json:
        print(json.dumps(to_dict(), indent=2, ensure_ascii=False))
        return
    print(align_columns(build_table()))
    print("\n" + "\n".join(format_cost()))
