"""Builds a model with its initial weights, random or from another run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from saccade.allocation import check_allocation, format_bytes
from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.model.build.allocation import AllocationGuard, OversizedTensorError
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import SkipInit
from saccade.train.checkpoint import Checkpoint
from saccade.train.optimizer import freeze
from saccade.train.transfer.initialization import init_weights
from saccade.train.transfer.lora import add_lora
from saccade.train.transfer.warm import warm_start

FLOAT32_BYTES = 4
MAX_UNCHECKED_BYTES = 2**28  # of a model; of a larger one, sizes are checked before it is built


def build_initial_model(recipe: Recipe, tokenizers: Tokenizers, *, fresh: bool) -> tuple[Model, list[str]]:
    """Build the model with weights initialized from the seed, then from `init` runs if `fresh`; freeze and add LoRA.

    Also returns remarks about the transferred weights.
    """
    torch.manual_seed(recipe.train.seed)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
    init_weights(model, recipe.train.weight_init)
    notes = warm_start(model, recipe, tokenizers) if fresh else []
    freeze(model, recipe.freeze)
    notes += add_lora(model, recipe)
    return model.train(), notes


def build_on_meta(recipe: Recipe, tokenizers: Tokenizers) -> Model:
    """Build the model without memory for its parameters, on the meta device; freeze and add LoRA."""
    with SkipInit(), torch.device("meta"):
        model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size)
        freeze(model, recipe.freeze)
        add_lora(model, recipe)
    return model


def build_checked_model(
    recipe: Recipe,
    tokenizers: Tokenizers,
    *,
    found: Checkpoint | None,
    device: torch.device,
    report: Callable[[str], None],
) -> tuple[Model, list[str]]:
    """Build the initial model; a large one first on the meta device, so that it is refused before memory is taken."""
    try:
        with AllocationGuard(total=MAX_UNCHECKED_BYTES):
            model, notes = build_initial_model(recipe, tokenizers, fresh=found is None)
    except OversizedTensorError:
        planned = build_on_meta(recipe, tokenizers)
        if found is not None:
            found.check_shapes(planned)
        needed = check_training_memory(planned, device)
        report(f"weights, gradients and optimizer take {format_bytes(needed)} of memory")
        return build_initial_model(recipe, tokenizers, fresh=found is None)
    check_training_memory(model, device)
    return model, notes


def check_training_memory(model: Model, device: torch.device) -> int:
    """Return the bytes that training a model takes without activations, and refuse one for which they are not free.

    These are gradients and optimizer state, three numbers for each trained parameter, and weights not yet allocated.
    """
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    missing = sum(parameter.numel() for parameter in model.parameters() if parameter.is_meta)
    needed = FLOAT32_BYTES * (3 * count + missing)
    if device.type == "cpu":
        hint = "train a smaller model, or fewer of its parameters (freeze, train.lora)"
        check_allocation(needed, f"training {count:,} parameters", hint)
    return needed
