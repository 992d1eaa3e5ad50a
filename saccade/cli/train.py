"""`saccade train` and `saccade demo`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import typer

from saccade.cli.arguments import Data, Plugins, Valid, check_overrides, is_override, parse_corpora
from saccade.cli.table import align_columns
from saccade.cli.watch import serve_training_page
from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError

Recipe = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help="Name of a recipe (see `saccade recipes`), or a .toml file.")
]
Overrides = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE", help="Overrides of recipe keys, such as train.steps=2000.")
]
RunName = Annotated[str | None, typer.Option("--run", metavar="NAME", help="Name of the run; default: RECIPE-N.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Train a small model on synthetic data, in at most three minutes.")]
Paper = Annotated[
    bool, typer.Option("--paper", help="Take sizes and settings from the recipe's paper: its table `paper`.")
]
Resume = Annotated[
    str | None, typer.Option("--resume", metavar="RUN", help="Resume training a run from its last checkpoint.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run of --run NAME, if there is one, by the new one.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Serve a page with learning curves, samples and attention.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Report on stderr why batches are not packed or why CUDA graphs are not used."),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", metavar="N", min=1,
        help="Train with N processes on this machine, one per GPU; train.parallel says how they share the model.",
    ),
]  # fmt: skip
DemoName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a demonstration, see --list.")]
ListDemos = Annotated[
    bool, typer.Option("--list", help="List all demonstrations with their synthetic data and a description.")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of data, initialization and batch order.")]


def train(  # noqa: PLR0913  # the options of a command are its parameters
    recipe: Recipe = None,
    overrides: Overrides = [],  # noqa: B006  # typer copies it
    data: Data = [],  # noqa: B006
    valid: Valid = [],  # noqa: B006
    run: RunName = None,
    tiny: Tiny = False,
    paper: Paper = False,
    resume: Resume = None,
    overwrite: Overwrite = False,
    watch: Watch = False,
    plugin: Plugins = [],  # noqa: B006
    verbose: Verbose = False,
    processes: Processes = None,
) -> None:
    """Train a model from a recipe, or resume training."""
    if recipe is not None and is_override(recipe):
        overrides, recipe = [recipe, *overrides], None
    if recipe is None and resume is None:
        raise SaccadeError("train needs a recipe (`saccade recipes` lists them), or --resume RUN to continue a run")
    if processes is not None:
        from saccade.cli.processes import start_processes

        start_processes(sys.argv[1:], processes)
        return
    files, more = parse_validation(valid)
    chosen = [*check_overrides(overrides), *more, *(["train.watch=true"] if watch else [])]
    shows_page = watch and os.environ.get("RANK", "0") == "0"
    with serve_training_page() if shows_page else nullcontext(), log_to_stderr() if verbose else nullcontext():
        from saccade.train.api import train as run_training

        run_training(
            recipe, data=parse_corpora(data) or None, valid=files, run=run, tiny=tiny, paper=paper, resume=resume,
            overrides=chosen, kinds=load_plugins(*plugin), overwrite=overwrite,
        )  # fmt: skip


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print the INFO messages of the logger `saccade` on stderr, one line each; in distributed training, of rank 0."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    logger = logging.getLogger("saccade")
    handler, level = logging.StreamHandler(sys.stderr), logger.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def parse_validation(valid: list[str]) -> tuple[list[list[str]] | None, list[str]]:
    """Parse `--valid`: its files, or the override `data.valid=0.01` where it is a fraction of the training data."""
    files = parse_corpora(valid)
    try:
        [[text]] = files
        return None, [f"data.valid={float(text)}"]
    except ValueError:
        if shares := [one[0] for one in files if len(one) == 1 and is_number(one[0])]:
            raise SaccadeError(
                f"--valid names files, or one share of the training data to hold out; got {shares[0]} and more"
            ) from None
        return files or None, []


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def demo(name: DemoName = "dates", run: RunName = None, seed: Seed = 1, list_demos: ListDemos = False) -> None:
    """Train a small model on synthetic data in one to three minutes, and show its outputs and attention."""
    if list_demos:
        from saccade.demo.listing import list_demonstrations

        print(align_columns([(one.name, one.data, str(one.target), one.about) for one in list_demonstrations()]))
    elif name == "dates":
        from saccade.demo.dates import run_demo

        run_demo(run=run, seed=seed)
    else:
        from saccade.demo.systems import run_demonstration

        run_demonstration(name, run=run, seed=seed)
