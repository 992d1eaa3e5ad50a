"""`saccade.plan(...)`: what training a recipe takes, from Python and from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.config.load import has_recipe, load, to_override_list
from saccade.plan.estimate import Plan, PlanRequest, get_vocabulary_size, make_plan
from saccade.plan.hardware import DEFAULT_GPU
from saccade.runs import RECIPE, WEIGHTS, find_run


def plan(  # noqa: PLR0913  # what users choose is its parameters
    recipe: str | Path,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    paper: bool = False,
    vocabulary: int | None = None,
    tokens: float | None = None,
    length: int | None = None,
    gpu: str = DEFAULT_GPU,
    gpus: int = 1,
    price: float | None = None,
    mfu: float | None = None,
    kinds: Mapping[str, Any] | None = None,
) -> Plan:
    """Estimate parameters, FLOPs, memory, time and cost of training a recipe; `recipe` may also be a trained run.

    `tokens` are the training tokens (default: train.steps full batches), `length` those of a sequence, `price` is in US
    dollars per GPU hour, `mfu` the share of the speed of a large matrix product that training reaches.
    """
    run = find_run_folder(str(recipe))
    loaded = load(
        recipe if run is None else run / RECIPE, overrides=to_override_list(overrides), paper=paper, kinds=kinds
    )
    if run is not None and vocabulary is None:
        vocabulary = get_vocabulary_size(loaded, run)
    return make_plan(loaded, PlanRequest(vocabulary, tokens, length, gpu, gpus, price, mfu))


def find_run_folder(name: str) -> Path | None:
    """Find the folder of a trained run by its name, its path, or the path of its recipe; None for any other recipe."""
    path = find_run(name)
    folder = path.parent if path.name == RECIPE else path
    is_run = (folder / RECIPE).is_file() and (folder / WEIGHTS).is_file()
    return folder if is_run and not has_recipe(name) else None
