"""Activation functions by name; the reference for the kernels."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # as in GPT-2
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}

FUSED_BACKWARD = ("relu", "gelu", "gelu-tanh")  # `triton/activation.py` computes their gradient and the bias's at once
