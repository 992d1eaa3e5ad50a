"""A model with its first weights: drawn from the seed, or taken over from a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from saccade.config.schema import Recipe
from saccade.data.tokenization.tokenizers import Tokenizers
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.optimizer import freeze
from saccade.train.transfer.lora import add_low_rank
from saccade.train.transfer.start import draw
from saccade.train.transfer.warm import warm_start

Kinds = Mapping[str, Any]


def make_model(recipe: Recipe, tokenizers: Tokenizers, *, fresh: bool, kinds: Kinds | None) -> tuple[Model, list[str]]:
    """The model with first weights that follow from the seed, or from the run to start from."""
    torch.manual_seed(recipe.train.seed)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target_size, kinds=kinds)
    draw(model, recipe.train.start)
    notes = warm_start(model, recipe, tokenizers, kinds=kinds) if fresh else []
    freeze(model, recipe.freeze)
    notes += add_low_rank(model, recipe)
    return model.train(), notes
