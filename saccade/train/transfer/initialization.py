"""Normal initialization with one standard deviation, as in BERT and GPT-2, in place of Xavier's."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from saccade.config.schema import WeightInit
from saccade.model.model import Model

RESIDUAL_OUTPUTS = (".out.weight", ".down.weight")  # last matrices of attention and feed-forward sublayers


def init_weights(model: Model, settings: WeightInit, *, assign: Callable[[str, Tensor], None] | None = None) -> None:
    """Initialize all matrices and embeddings again if the recipe asks for it; norms and biases stay.

    GPT-2 divides the standard deviation of matrices that write to the residual stream by sqrt(number of sublayers).
    With `assign`, the model stays as it is, and `assign` gets the name and the new value of one matrix at a time.
    """
    if not settings.overrides_layer_init:
        return
    for side, part in model.named_children():
        matrices = {
            name: weight for name, weight in part.named_parameters() if weight.dim() > 1 and name.endswith(".weight")
        }
        sublayers = sum(name.endswith(RESIDUAL_OUTPUTS) for name in matrices)
        for name, weight in matrices.items():
            factor = math.sqrt(sublayers) if settings.scale_by_depth and name.endswith(RESIDUAL_OUTPUTS) else 1.0
            new = weight if assign is None else torch.empty(weight.shape, dtype=weight.dtype)
            nn.init.normal_(new, std=settings.init_std / factor)
            if assign is not None:
                assign(f"{side}.{name}", new)
