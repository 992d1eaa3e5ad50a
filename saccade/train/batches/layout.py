"""Chooses the layout of training batches (packed, padded to few shapes, or plain) and whether steps run as CUDA graphs.

The parts of a model declare what they support (`Capabilities`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from saccade.config.protocols import get_capabilities
from saccade.config.schema import Recipe, Train
from saccade.errors import SaccadeError
from saccade.model.model import Model
from saccade.train.batches.pack import pack_batch, pack_if_padded
from saccade.train.batches.prefetch import BatchTransform, pad_to_two
from saccade.train.batches.static_shapes import pad_to_static_shape
from saccade.train.distributed.ranks import Ranks
from saccade.train.objectives.terms import Objective, generates_outputs, is_tested_on_picture_graphs

logger = logging.getLogger(__name__)
SHARD_HINT = (
    "training steps are not CUDA graphs: those of shards were tested on one GPU, and between processes on CPUs alone; "
    "train.cuda_graphs=true tries them, which may be much faster if blocks are small"
)


class Layout(NamedTuple):
    """Layout of the batches of a training run."""

    transform: BatchTransform | None  # packs or pads a batch before it is copied to the device
    use_cuda_graphs: bool  # whether training steps run as CUDA graphs
    hint: str | None = None  # a setting that may make it faster, which users must choose themselves


def choose_layout(
    recipe: Recipe, model: Model, objectives: Sequence[Objective], *, device: torch.device, ranks: Ranks
) -> Layout:
    """Choose the fastest layout that the model supports; the reasons against a faster one are logged."""
    settings, generates = recipe.train, any(map(generates_outputs, objectives))
    if settings.compile and (problem := find_compile_problem(model)):
        logger.info("blocks are not compiled: %s", problem)
    packed = should_pack(settings, model, device, generates=generates)
    capturable = packed or can_capture_padded(model, objectives, requested=bool(settings.cuda_graphs))
    step: dict[str, Any] = {"capturable": capturable, "generates": generates, "ranks": ranks, "device": device}
    captures = should_capture(recipe, **step)
    hint = None
    if settings.cuda_graphs is None and not captures and not list_missing_for_graphs(recipe, **step):
        hint = SHARD_HINT
    padded = captures and not packed and get_capabilities(model.writer).padded_targets
    return Layout(choose_transform(settings, packed=packed, padded=padded, device=device), captures, hint)


def find_compile_problem(model: Model) -> str:
    """Why the blocks of a stack run without torch.compile; empty if all are compiled, in any layout of processes."""
    return next((problem for stack in model.modules() if (problem := getattr(stack, "score_problem", ""))), "")


def should_pack(settings: Train, model: Model, device: torch.device, *, generates: bool = False) -> bool:
    """Whether sequences are packed into one row; never if an objective generates outputs during training."""
    if generates and settings.pack:
        raise SaccadeError(
            "train.pack=true: an objective generates outputs, so that each sequence needs a row of its own; "
            "leave train.pack out"
        )
    if generates:
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


def can_capture_padded(model: Model, objectives: Sequence[Objective], *, requested: bool) -> bool:
    """Whether a CUDA graph can hold a step on padded batches: nothing in it synchronizes with the device.

    Inputs of one size give batches of one shape, except the last of an epoch. With an objective whose graphs have not
    been tested on pictures, graphs are used only if `requested`.
    """
    capabilities = model.capabilities
    if missing := capabilities.explain_missing("static_shapes"):
        logger.info("steps on padded batches are not CUDA graphs: %s", missing)
        return False
    if get_capabilities(model.reader).fixed_inputs:
        return requested or all(map(is_tested_on_picture_graphs, objectives))
    return model.reader is not None and get_capabilities(model.writer).padded_targets


def should_capture(
    recipe: Recipe, *, capturable: bool, ranks: Ranks, device: torch.device, generates: bool = False
) -> bool:
    """Whether steps run as CUDA graphs, see `list_missing_for_graphs`.

    Those of several shards hold collective operations of NCCL, and are used only if requested. Raises a SaccadeError if
    graphs are requested and not possible.
    """
    requested = recipe.train.cuda_graphs
    missing = list_missing_for_graphs(recipe, capturable=capturable, ranks=ranks, device=device, generates=generates)
    if requested and missing:
        raise SaccadeError(f"train.cuda_graphs=true needs {' and '.join(missing)}; leave train.cuda_graphs out")
    if missing and device.type == "cuda":
        logger.info("training steps are not CUDA graphs, which need %s", " and ".join(missing))
    shares = ranks.mesh is not None and ranks.world_size > 1
    return not missing and (requested is not False if not shares else bool(requested))


def list_missing_for_graphs(
    recipe: Recipe, *, capturable: bool, ranks: Ranks, device: torch.device, generates: bool = False
) -> list[str]:
    """Return what CUDA graphs need and this training lacks: no tensor parallelism, no synchronization with the device.

    `capturable`: whether a graph can hold a step of this model.
    """
    settings = recipe.train
    parts = (*recipe.objectives, settings.optimizer, *settings.augment)
    undeclared = [part.kind for part in parts if not part.is_capturable]
    needs = {
        "a CUDA device": device.type == "cuda",
        "objectives that do not generate outputs": not generates,
        "stacks that a graph can hold": capturable or generates,
        "train.parallel.tensor=1": ranks.tensor == 1,
        "train.recompute=false": not settings.recompute,
        f"capturable = True of your own kinds ({', '.join(undeclared)})": not undeclared,
    }
    return [name for name, holds in needs.items() if not holds]


def choose_transform(
    settings: Train, *, packed: bool, padded: bool = False, device: torch.device
) -> BatchTransform | None:
    """Return the function that packs or pads batches on the host; None where they stay as they are."""
    if packed:
        return functools.partial(pack_batch, budget=settings.batch_tokens) if device.type == "cuda" else pack_if_padded
    if padded:
        return functools.partial(pad_to_static_shape, budget=settings.batch_tokens)
    return pad_to_two if settings.compile else None
