"""`saccade sweep`: train a recipe with every combination of some values and compare the scores."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from saccade.cli.arguments import Data, Json, Plugins, Valid, check_overrides, parse_corpora
from saccade.cli.table import align_columns
from saccade.cli.train import Overrides, Paper, Tiny, parse_validation
from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Name of a recipe (see `saccade recipes`), or a .toml file.")
]
GridWords = Annotated[
    list[str],
    typer.Option(
        "--grid", metavar="KEY=A,B,...",
        help="A key of the recipe and the values to try. Repeatable: all combinations are tried. With --search "
        "optuna also a range: KEY=LOW..HIGH, or KEY=LOW..HIGH:log.",
    ),
]  # fmt: skip
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", help="Train each configuration with the seeds 1 to N.")]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", metavar="N", help="Train N trials at a time, which share the cores, or are spread over the GPUs."
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the sweep; default: RECIPE-sweep.")]
Prune = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Stop the worse half of the configurations after a quarter of train.steps, and again after half of them "
        "(successive halving).",
    ),
]
SearchKind = Annotated[
    str,
    typer.Option("--search", metavar="grid|optuna", help="Try all combinations, or those that Optuna suggests."),
]
Trials = Annotated[
    int | None, typer.Option("--trials", metavar="N", help="Number of configurations that --search optuna tries.")
]
MaxTrials = Annotated[
    int, typer.Option("--max-trials", metavar="N", help="Refuse to start a sweep of more trainings than this.")
]


def sweep(  # noqa: PLR0913  # the options of a command are its parameters
    recipe: RecipeName,
    overrides: Overrides = [],  # noqa: B006  # typer copies it
    grid: GridWords = [],  # noqa: B006
    seeds: Seeds = 3,
    jobs: Jobs = 1,
    data: Data = [],  # noqa: B006
    valid: Valid = [],  # noqa: B006
    name: Name = None,
    tiny: Tiny = False,
    paper: Paper = False,
    prune: Prune = False,
    search: SearchKind = "grid",
    trials: Trials = None,
    max_trials: MaxTrials = 100,
    plugin: Plugins = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Hyperparameter search: train all combinations of some values (grid search), or those that Optuna suggests."""
    from saccade.sweep.api import sweep as run_sweep
    from saccade.sweep.grid import parse_words
    from saccade.sweep.report import format_note, format_table
    from saccade.sweep.trials import FINISHED

    files, more = parse_validation(valid)
    result = run_sweep(
        recipe, grid=parse_words(grid), seeds=seeds, jobs=jobs, data=parse_corpora(data) or None, valid=files,
        overrides=[*check_overrides(overrides), *more], tiny=tiny, paper=paper, plugins=plugin, name=name, prune=prune,
        search=search, trials=trials, max_trials=max_trials,
    )  # fmt: skip
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        print(align_columns(format_table(result, load_plugins(*plugin))))
        print(f"\n{format_note(result)}\nreport, picture and all scores: {result.folder}/report.md")
    if result.best.state != FINISHED:
        raise SaccadeError(f"no configuration has finished; the logs are in {result.folder}/logs")
