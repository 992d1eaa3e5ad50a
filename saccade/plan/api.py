"""`saccade.plan(...)`: what training a recipe takes, from Python and from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from saccade.config.load import has_recipe, load, to_override_list
from saccade.plan.estimate import Plan, PlanRequest, add_cpu_speed, get_vocabulary_size, make_plan
from saccade.plan.hardware import DEFAULT_GPU
from saccade.runs import RECIPE, WEIGHTS, find_run


def plan(  # noqa: PLR0913  # what users choose is its parameters
    recipe: str | Path,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    tiny: bool = False,
    paper: bool = False,
    vocabulary: int | None = None,
    tokens: float | None = None,
    length: int | None = None,
    gpu: str | None = None,
    gpus: int = 1,
    price: float | None = None,
    mfu: float | None = None,
    kinds: Mapping[str, Any] | None = None,
) -> Plan:
    """Estimate parameters, FLOPs, memory, time and cost of training a recipe; `recipe` may also be a trained run.

    Without a GPU of this machine and without `gpu`, or with gpu="cpu", some steps are trained on the CPU, and the plan
    has the time of training there too; everything else is for an H200.

    `tokens` are the training tokens (default: train.steps full batches), `length` those of a sequence, `price` is in US
    dollars per GPU hour, `mfu` the share of the speed of a large matrix product that training reaches.
    """
    run = find_run_folder(str(recipe))
    loaded = load(
        recipe if run is None else run / RECIPE,
        overrides=to_override_list(overrides), tiny=tiny, paper=paper, kinds=kinds,
    )  # fmt: skip
    if run is not None and vocabulary is None:
        vocabulary = get_vocabulary_size(loaded, run)
    on_cpu = gpu is not None and gpu.lower() == "cpu"
    measures = on_cpu or (gpu is None and gpus == 1 and mfu is None and not torch.cuda.is_available())
    name = DEFAULT_GPU if gpu is None or on_cpu else gpu
    made = make_plan(loaded, PlanRequest(vocabulary, tokens, length, name, gpus, price, mfu))
    return add_cpu_speed(made, run) if measures else made


def find_run_folder(name: str) -> Path | None:
    """Find the folder of a trained run by its name, its path, or the path of its recipe; None for any other recipe."""
    path = find_run(name)
    folder = path.parent if path.name == RECIPE else path
    is_run = (folder / RECIPE).is_file() and (folder / WEIGHTS).is_file()
    return folder if is_run and not has_recipe(name) else None
