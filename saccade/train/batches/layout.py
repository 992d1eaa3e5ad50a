"""How batches are laid out for a model: packed rows, padding to few shapes, or as they come; and whether a CUDA graph
can hold a training step. What a model can take, its parts declare (`Capabilities`)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from saccade.config.kinds import Custom
from saccade.config.protocols import get_capabilities
from saccade.config.schema import Recipe, Train
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.train.batches.feed import Shape, widened
from saccade.train.batches.pack import pack, pack_padded
from saccade.train.batches.rectangles import fill_up
from saccade.train.objectives.terms import Objective, is_proven_on_pictures, lets_write

logger = logging.getLogger(__name__)


class Layout(NamedTuple):
    """How batches reach the model."""

    shape: Shape | None  # brings a batch into form on its way to the device
    captures: bool  # whether training steps may run as CUDA graphs


def choose_layout(
    recipe: Recipe, model: Model, objectives: Sequence[Objective], *, device: torch.device, world: int
) -> Layout:
    """The fastest layout that the model's parts declare; the reasons against a faster one are logged."""
    settings, writes = recipe.train, any(map(lets_write, objectives))
    packs = packs_rows(settings, model, device, writes=writes)
    holds = packs or holds_steps(model, objectives, asked=bool(settings.graphs))
    captures = captures_steps(recipe, holds=holds, writes=writes, world=world, device=device)
    fills = captures and not packs and get_capabilities(model.writer).padded_targets
    return Layout(shape_of_batches(settings, packs=packs, fills=fills, device=device), captures)


def packs_rows(settings: Train, model: Model, device: torch.device, *, writes: bool = False) -> bool:
    """Whether batches come as packed rows; not where an objective lets the model write."""
    if writes and settings.pack:
        raise SaccadeError(
            "train.pack=true: an objective lets the model write, so that each text needs a row of its own; "
            "leave train.pack out"
        )
    if writes:
        return False
    missing = model.capabilities.explain_missing("packed_rows")
    if settings.pack and missing:
        raise SaccadeError(
            "train.pack=true needs a reader and a writer that take packed rows, and one of kind "
            f"{type(model.reader).__name__}, {type(model.writer).__name__} does not; leave train.pack out ({missing})"
        )
    if missing:
        logger.info("batches are padded, not packed: %s", missing)
    faster = device.type == "cuda" or (device.type == "cpu" and not settings.compile)
    return (faster if settings.pack is None else settings.pack) and not missing


def holds_steps(model: Model, objectives: Sequence[Objective], *, asked: bool) -> bool:
    """Whether a CUDA graph can hold a step on padded batches, since nothing in it asks the device.

    Inputs of one size make batches of one shape, and the last of an epoch another. With other objectives than those
    that GPUs have been seen to learn by as graphs, only where that is asked for.
    """
    found = model.capabilities
    if missing := found.explain_missing("static_shapes"):
        logger.info("steps on padded batches are no CUDA graphs: %s", missing)
        return False
    if get_capabilities(model.reader).fixed_inputs:
        return asked or all(map(is_proven_on_pictures, objectives))
    return model.reader is not None and get_capabilities(model.writer).padded_targets


def captures_steps(recipe: Recipe, *, holds: bool, world: int, device: torch.device, writes: bool = False) -> bool:
    """Whether a step can be one CUDA graph: one process, one batch a step, and nothing in it asks the device.

    `holds`: whether a graph can hold the stacks.
    """
    settings = recipe.train
    own = [table for table in recipe.objectives if isinstance(table, Custom)]
    against = {
        "a CUDA device": device.type == "cuda",
        "objectives that do not let the model write": not writes,
        "stacks that a graph can hold": holds or writes,
        "one process": world == 1,
        "train.accumulate=1": settings.accumulate == 1,
        "train.recompute=false": not settings.recompute,
        "only kinds that come with saccade": not own,
    }
    missing = [what for what, there in against.items() if not there]
    if settings.graphs and missing:
        raise SaccadeError(f"train.graphs=true needs {' and '.join(missing)}; leave train.graphs out")
    return settings.graphs is not False and not missing


def shape_of_batches(settings: Train, *, packs: bool, fills: bool = False, device: torch.device) -> Shape | None:
    """How batches are brought into form on their way to the device."""
    if packs:
        return functools.partial(pack, budget=settings.batch_tokens) if device.type == "cuda" else pack_padded
    if fills:
        return functools.partial(fill_up, budget=settings.batch_tokens)
    return widened if settings.compile else None
