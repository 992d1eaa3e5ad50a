"""Writers of encoder models (BERT): heads over the states of the reader."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, TensorPlan
from saccade.kernels.activations import ACTIVATIONS
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.model.writers.labels import StatesHead, pool_states


class FirstStatePooler(nn.Linear):
    """BERT's pooler: tanh(W x + b) of the first state of each sequence (Devlin et al. 2019)."""

    def forward(self, first: Float[Tensor, "R D"]) -> Float[Tensor, "R D"]:
        return torch.tanh(super().forward(first))


class StatesWriter(StatesHead):
    """A writer without outputs, for encoders that return states; with `pool`, `hidden` pools the first state."""

    def __init__(self, dim: int, *, pool: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.output, self.hidden = None, FirstStatePooler(dim, dim) if pool else None


class MaskedWriter(StatesHead):
    """The masked-language-model head: output matrix times norm(f(W x + b)) (Devlin et al. 2019).

    With `pairs` also two logits for each sequence: its second segment follows the first, or it does not.
    """

    capabilities = Capabilities(packed_rows=True, linear_head=True, tensor_parallel=True)
    tensor_plan = TensorPlan(outputs=("output",))
    output_scale = 1.0

    def __init__(
        self,
        dim: int,
        output: nn.Linear,
        *,
        activation: str = "gelu",
        epsilon: float = 1e-5,
        pairs: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = output.weight.shape[1]
        self.dim, self.activation = dim, activation
        self.transform, self.norm = nn.Linear(dim, width), nn.LayerNorm(width, eps=epsilon)
        self.output = output
        self.hidden = FirstStatePooler(dim, dim) if pairs else None
        self.dropout = Dropout(dropout)
        self.follows = nn.Linear(dim, 2) if pairs else None
        new: Sequence[nn.Linear | None] = (self.transform, self.hidden, self.follows)
        for linear in new:
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)

    @property
    def hidden_width(self) -> int:
        return self.transform.out_features

    def forward(self, states: Float[Tensor, "... D"]) -> Float[Tensor, "... E"]:
        """Transform the states of masked tokens; `head` turns the result into logits."""
        return self.norm(ACTIVATIONS[self.activation](self.transform(states)))

    def head(self, hidden: Float[Tensor, "... E"]) -> Float[Tensor, "... V"]:
        return self.output(hidden)

    def compute_pair_logits(self, memory: Memory) -> Float[Tensor, "R 2"]:
        """Logits, for each sequence, that its second segment follows the first and that it does not."""
        assert self.hidden is not None and self.follows is not None, "the recipe was checked"
        return self.follows(self.dropout(self.hidden(pool_states(memory, "first"))))
