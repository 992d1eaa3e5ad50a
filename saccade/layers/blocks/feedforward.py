"""The network that each position passes alone."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.kernels.activations import ACTIVATIONS, FUSED_BACKWARD
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.kernels.weights import FeedForwardWeights, describe_linear
from saccade.layers.attention.backends import TRITON
from saccade.layers.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid"]


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, equation 2); with a gate: (f(x W1) * x Wg) W2 (Shazeer 2020)."""

    experts_per_token: int | None = None  # there are none
    repeated_passes = True  # may be called pass after pass by `filling`, in place of the block

    def __init__(
        self,
        dim: int,
        *,
        hidden: int,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if gated else None
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.dropout = Dropout(dropout)
        for linear in (self.up, self.gate, self.down):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if bias:
                    nn.init.zeros_(linear.bias)

    @property
    def hidden(self) -> int:
        return self.up.out_features

    @property
    def is_gated(self) -> bool:
        return self.gate is not None

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        hidden = self._widened(x) if self._fuses(x) else ACTIVATIONS[self.activation](self.up(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.down(self.dropout(hidden))

    @property
    def cpu_layout(self) -> CpuLayout:
        return CpuLayout(("up", "gate", "down"), is_relu=self.activation == "relu" and self.gate is None)

    def describe(self) -> FeedForwardWeights:
        """Its weights for the kernels of a decoding step."""
        gate = None if self.gate is None else describe_linear(self.gate)
        return FeedForwardWeights(describe_linear(self.up), gate, describe_linear(self.down), self.activation)

    def _fuses(self, x: Tensor) -> bool:
        """Whether the gradients of activation and bias can be one kernel: in training on a GPU."""
        known = self.activation in FUSED_BACKWARD and self.up.bias is not None and self.gate is None
        return known and TRITON and x.is_cuda and x.dtype != torch.float64 and torch.is_grad_enabled()

    def _widened(self, x: Tensor) -> Tensor:
        """The activation of x W1 + b1; the gradient of b1 comes from the kernel, not from the product."""
        from saccade.kernels.triton.activation import activated

        return activated(F.linear(x, self.up.weight, self.up.bias.detach()), self.up.bias, self.activation)
