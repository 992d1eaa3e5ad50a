"""`saccade reproduce`: train recorded results again and compare them with the recorded numbers."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.arguments import Json, split_overrides
from saccade.cli.table import align_columns
from saccade.errors import SaccadeError
from saccade.runs import get_runs_folder

if TYPE_CHECKING:
    from saccade.reproduce.seeds import Options
    from saccade.reproduce.spec import Spec

EXIT_FAILED = 1
MAX_SEEDS = 1000

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME]... [KEY=VALUE]...",
        help="Names of results, or TOML files with results of your own; none lists all. KEY=VALUE needs --heldout.",
    ),
]
ListOnly = Annotated[bool, typer.Option("--list", help="List all results and what they need.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data-folder", metavar="DIR", help="Folder of the data sets; files are checked by hash."),
]
SeedCount = Annotated[
    int, typer.Option("--seeds", metavar="N", help="Train with seeds 1 to N; finished ones are kept.")
]
HeldOut = Annotated[
    bool, typer.Option("--heldout", help="Score data that is held out from training, not the test; to choose settings.")
]
Again = Annotated[bool, typer.Option("--again", help="Score finished seeds of --out again; the card counts it.")]
OnlyNew = Annotated[bool, typer.Option("--only-new", help="Leave out seeds that are recorded, to add new ones.")]
TrialSteps = Annotated[
    int | None,
    typer.Option("--try", metavar="STEPS", help="Only try whether everything runs, with few steps and examples."),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", metavar="MINUTES", help="Start no seed whose recorded minutes do not fit into this time."),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for runs and cards; default runs/reproduce.")
]


def reproduce(  # noqa: PLR0913  # the options of a command are its parameters
    names: Names = [],  # noqa: B006  # typer copies it
    listed: ListOnly = False,
    data_folder: DataFolder = None,
    seeds: SeedCount = 3,
    heldout: HeldOut = False,
    again: Again = False,
    only_new: OnlyNew = False,
    trial_steps: TrialSteps = None,
    budget: Budget = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train recorded results again; pass or fail against the recorded numbers. Exit code 1 if one fails."""
    from saccade.reproduce.spec import find_specs, list_specs

    chosen, overrides = split_overrides(names)
    specs = find_specs(chosen) if chosen else list(list_specs().values())
    if listed or not chosen:
        if overrides:
            raise SaccadeError(f"{overrides[0]} needs the NAME of a result; `saccade reproduce --list` lists them")
        print_list(specs, as_json=as_json)
        return
    if not 1 <= seeds <= MAX_SEEDS:
        raise SaccadeError(f"--seeds must be from 1 to {MAX_SEEDS:,}, got {seeds}")
    if budget is not None and not 0 < budget < math.inf:
        raise SaccadeError(f"--budget must be a number of minutes above 0, got {budget:g}")
    if trial_steps is not None and (trial_steps < 1 or heldout):
        got = "--heldout too" if heldout else str(trial_steps)
        raise SaccadeError(f"--try takes a number of steps of at least 1, without --heldout, got {got}")
    from saccade.reproduce.seeds import Options

    options = Options(
        out=out or get_runs_folder() / "reproduce", data_folder=data_folder, seeds=1 if trial_steps else seeds,
        heldout=heldout, again=again, only_new=only_new, trial_steps=trial_steps, overrides=overrides,
        deadline=budget and time.monotonic() + 60 * budget,
    )  # fmt: skip
    cards = reproduce_all(specs, options, as_json=as_json)
    if any(card["verdict"] == "fail" for card in cards):
        raise SystemExit(EXIT_FAILED)


def reproduce_all(specs: Sequence[Spec], options: Options, *, as_json: bool) -> list[dict[str, Any]]:
    """Train the first seed of all results, then the second; cards are written after every seed."""
    from saccade.reproduce.card import build_card, format_card, write_card
    from saccade.reproduce.seeds import Seeds, check_options, run_seed

    for spec in specs:  # report a mistake before hours of training
        check_options(spec, options)
        if options.trial_steps:
            shutil.rmtree(options.get_folder(spec.name), ignore_errors=True)  # what was tried before
    found, cards = [Seeds(spec) for spec in specs], dict[str, dict[str, Any]]()
    for seed in range(1, options.seeds + 1):
        for seeds in found:
            run_seed(seeds, options, seed, report=lambda message: print(message, file=sys.stderr, flush=True))
            cards[seeds.spec.name] = build_card(seeds, format_command(seeds.spec, options))
            write_card(cards[seeds.spec.name], seeds.spec, options.get_folder(seeds.spec.name))
    if as_json:
        print(json.dumps(list(cards.values()), indent=2, ensure_ascii=False))
    else:
        print("\n".join(format_card(cards[spec.name], spec) for spec in specs))
        print(f"cards: {', '.join(str(options.get_folder(spec.name)) for spec in specs)}")
    return list(cards.values())


def format_command(spec: Spec, options: Options) -> str:
    """The command that repeats this, without folders of this machine."""
    words = ["saccade", "reproduce", spec.name]
    words += ["--try", str(options.trial_steps)] if options.trial_steps else ["--seeds", str(options.seeds)]
    words += ["--only-new"] if options.only_new else []
    words += ["--data-folder", "DATA"] if spec.list_needed_files() else []
    words += ["--heldout", *options.overrides] if options.heldout else []
    return shlex.join(words)


def print_list(specs: Sequence[Spec], *, as_json: bool) -> None:
    from saccade.reproduce.card import describe_recorded, format_count, format_mean, format_optional

    if as_json:
        print(json.dumps([spec.model_dump(mode="json") for spec in specs], indent=2, ensure_ascii=False))
        return
    rows = [("name", "recipe", "data", "recorded", "seeds", "parameters", "minutes a seed", "hardware")]
    for spec in specs:
        recorded = describe_recorded(spec)
        mean = format_mean(recorded["mean"], recorded["spread"]) if recorded else "not recorded"
        rows.append(
            (
                spec.name, f"{spec.recipe}{' (tiny)' if spec.tiny else ''}", spec.dataset,
                f"{spec.metric} {mean} {spec.unit}", str(len(spec.recorded_values)),
                format_count(recorded.get("parameters")), format_optional(recorded.get("minutes")),
                recorded.get("hardware", "-"),
            )
        )  # fmt: skip
    print(align_columns(rows))
    print("\nsaccade reproduce NAME --data-folder DIR trains and scores one again; data sets that are embedded")
    print("need no folder. What was chosen on which data: docs/results.md")
