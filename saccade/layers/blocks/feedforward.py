"""The position-wise feed-forward network."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.config.protocols import TensorPlan
from saccade.kernels.activations import ACTIVATIONS, FUSED_BACKWARD
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.kernels.weights import FeedForwardWeights, describe_linear
from saccade.layers.attention.backends import HAS_TRITON
from saccade.layers.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid"]


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, equation 2); with a gate: (f(x W1) * x Wg) W2 (Shazeer 2020)."""

    experts_per_token: int | None = None  # not a mixture of experts
    repeated_passes = True  # `repeated_passes.py` may call it
    fuses_backward = True  # see `_can_fuse_backward`

    def __init__(
        self,
        dim: int,
        *,
        hidden_dim: int,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(dim, hidden_dim, bias=bias)
        self.gate = nn.Linear(dim, hidden_dim, bias=bias) if gated else None
        self.down = nn.Linear(hidden_dim, dim, bias=bias)
        self.dropout = Dropout(dropout)
        for linear in (self.up, self.gate, self.down):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if bias:
                    nn.init.zeros_(linear.bias)

    @property
    def hidden_dim(self) -> int:
        return self.up.out_features

    @property
    def is_gated(self) -> bool:
        return self.gate is not None

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        hidden = self._activate_fused(x) if self._can_fuse_backward(x) else ACTIVATIONS[self.activation](self.up(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.down(self.dropout(hidden))

    @property
    def tensor_plan(self) -> TensorPlan:
        return TensorPlan(
            columns=("up",) if self.gate is None else ("up", "gate"), rows=("down",), dropouts=("dropout",),
            fused=("fuses_backward",), sizes={"ff": self.hidden_dim},
        )  # fmt: skip

    @property
    def cpu_layout(self) -> CpuLayout:
        return CpuLayout(("up", "gate", "down"), is_relu=self.activation == "relu" and self.gate is None)

    def describe(self) -> FeedForwardWeights:
        """The weights for the kernels of a decoding step."""
        gate = None if self.gate is None else describe_linear(self.gate)
        return FeedForwardWeights(describe_linear(self.up), gate, describe_linear(self.down), self.activation)

    def _can_fuse_backward(self, x: Tensor) -> bool:
        """Whether one GPU kernel can compute the gradients of activation and bias in the backward pass."""
        supported = self.activation in FUSED_BACKWARD and self.up.bias is not None and self.gate is None
        on_gpu = HAS_TRITON and x.is_cuda and x.dtype != torch.float64 and torch.is_grad_enabled()
        return supported and on_gpu and self.fuses_backward

    def _activate_fused(self, x: Tensor) -> Tensor:
        """f(x W1 + b1); the gradient of b1 comes from the kernel instead of the linear layer."""
        from saccade.kernels.triton.activation import activate

        return activate(F.linear(x, self.up.weight, self.up.bias.detach()), self.up.bias, self.activation)
