"""Builds a model with its initial weights, random or from another run."""

from __future__ import annotations

import torch

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.run import SkipInit
from saccade.train.optimizer import freeze
from saccade.train.transfer.initialization import init_weights
from saccade.train.transfer.lora import add_lora
from saccade.train.transfer.warm import warm_start


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
