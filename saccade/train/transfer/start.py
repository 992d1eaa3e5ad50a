"""First weights by one spread, as BERT and GPT-2 had them, in the place of Xavier's."""

import math

from torch import nn

from saccade.config.schema import Start
from saccade.model.model import Model

ENDS = (".out.weight", ".down.weight")  # of attention and of the feed-forward network: what joins the residual


def draw(model: Model, start: Start) -> None:
    """Draws all matrices and tables anew where the recipe asks for it; norms and biases stay."""
    if not start.is_drawn_anew:
        return
    for part in model.children():
        matrices = {
            name: weight for name, weight in part.named_parameters() if weight.dim() > 1 and name.endswith(".weight")
        }
        sublayers = sum(name.endswith(ENDS) for name in matrices)
        for name, weight in matrices.items():
            less = math.sqrt(sublayers) if start.deep and name.endswith(ENDS) else 1.0
            nn.init.normal_(weight, std=start.std / less)
