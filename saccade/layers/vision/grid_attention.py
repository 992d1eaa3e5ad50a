"""Self-attention inside a convolutional network: all places of a grid look at all others (SAGAN, Zhang et al. 2019)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.attention.scores import attend, dot
from saccade.layers.record import keep, recording

NARROWER = 8  # times, that queries, keys and values are narrower than what they are made of


class GridAttention(nn.Module):
    """x + gamma * W_o attend(W_q x, W_k x, W_v x), every W a convolution of 1 x 1 (section 3, equations 1 to 3).

    gamma is learned and begins at 0: at first nothing changes. `times` is how many places there are for each cell in
    the end.
    """

    def __init__(self, channels: int, *, times: int = 1) -> None:
        super().__init__()
        inside = max(1, channels // NARROWER)
        self.times = times
        self.query, self.key, self.value = (nn.Conv2d(channels, inside, 1, bias=False) for _ in range(3))
        self.output = nn.Conv2d(inside, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
        query, key, value = (make(x).flatten(2).mT for make in (self.query, self.key, self.value))
        if recording():
            found, weights = attend(query, key, value, score=dot)
            keep(self, weights[:, None])
        else:
            found = F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=1.0)[:, 0]
        return x + self.gamma * self.output(found.mT.contiguous().unflatten(2, x.shape[2:]))
