"""Self-attention between all positions of a feature map in a convolutional network (SAGAN, Zhang et al. 2019)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.attention.scores import attend, dot
from saccade.layers.record import is_recording, record_weights

CHANNEL_REDUCTION = 8  # queries, keys and values have 1/8 of the channels


class GridAttention(nn.Module):
    """x + gamma * W_o attend(W_q x, W_k x, W_v x), every W a 1 x 1 convolution (section 3, equations 1 to 3).

    gamma is learned and initialized to 0. `positions_per_state` is the number of positions here for each state of the
    final feature map, for counting operations.
    """

    def __init__(self, channels: int, *, positions_per_state: int = 1) -> None:
        super().__init__()
        inner = max(1, channels // CHANNEL_REDUCTION)
        self.positions_per_state = positions_per_state
        self.query, self.key, self.value = (nn.Conv2d(channels, inner, 1, bias=False) for _ in range(3))
        self.output = nn.Conv2d(inner, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
        query, key, value = (project(x).flatten(2).mT for project in (self.query, self.key, self.value))
        if is_recording():
            y, weights = attend(query, key, value, score=dot)
            record_weights(self, weights[:, None])
        else:
            y = F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=1.0)[:, 0]
        return x + self.gamma * self.output(y.mT.contiguous().unflatten(2, x.shape[2:]))
