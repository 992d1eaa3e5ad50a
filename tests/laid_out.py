"""Small Transformers of random weights, which lie as they do for decoding on a CPU."""

import torch

from saccade.config.load import load
from saccade.data.tokenization.tokenizers import END
from saccade.model.build.model import build
from saccade.model.inference import load_quantized_weights, prepack_weights, quantize_weights
from saccade.model.model import Model

SIZES = ["layers=2", "dim=48", "heads=3", "ff=80"]
SMALL = [f"{side}.stack.{size}" for side in ("reader", "writer") for size in SIZES]
LANGUAGE = ["writer.stack.activation=relu", *SMALL[4:], "data.max_length=32", "writer.positions.length=32"]


def made(
    *settings: str, recipe: str = "transformer", kind: str = "fp32", words: int = 20, seed: int = 1, end: float = 1.0
) -> Model:
    """`end`: how much larger the vector of END is, so that outputs end sooner or later."""
    torch.manual_seed(seed)
    own = LANGUAGE if recipe == "gpt2" else SMALL
    model = build(load(recipe, overrides=[*own, *settings]), source_size=words, target_size=words).eval()
    for parameter in model.parameters():  # norms and biases that are not what they begin with
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.writer.embedding.tokens.weight.data[END] *= end
    if kind == "int8":
        load_quantized_weights(model, quantize_weights(model))
    else:
        prepack_weights(model)
    return model
