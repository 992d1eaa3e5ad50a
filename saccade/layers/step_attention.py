"""Attention of a few queries on a CPU, as in decoding: SDPA calls a matrix product for each row and head, which then
takes longer than the work itself."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.layers.attention import masked_softmax

FEW_KEYS = 16  # for so many, sums over all rows take less time than two small products for each row and head


def covers(query: Float[Tensor, "B Q H E"]) -> bool:
    """Whether these are faster here: without gradients, which would keep every product."""
    return query.device.type == "cpu" and not torch.is_grad_enabled()


def one_query(
    query: Float[Tensor, "B 1 H E"], key: Float[Tensor, "B K H E"], value: Float[Tensor, "B K H E"], *, scale: float
) -> Float[Tensor, "B 1 H E"]:
    """One query in each row to all keys of that row. Fastest where one position of all rows lies in one piece."""
    if key.shape[1] > FEW_KEYS:
        return few_queries(query, key, value, scale=scale, keep=None)
    keys, values = key.transpose(0, 1), value.transpose(0, 1)
    weights = (query.squeeze(1) * scale * keys).sum(-1).softmax(0)
    return (weights[..., None] * values).sum(0)[:, None]


def few_queries(
    query: Float[Tensor, "B Q H E"],
    key: Float[Tensor, "B K H E"],
    value: Float[Tensor, "B K H E"],
    *,
    scale: float,
    keep: Bool[Tensor, "B K"] | None,
) -> Float[Tensor, "B Q H E"]:
    """Some queries to the same keys. Fastest where the keys of one feature lie in one piece."""
    rows, count, heads, head_dim = query.shape
    queries = (query * scale).transpose(1, 2).reshape(rows * heads, count, head_dim)
    keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (key, value))
    scores = torch.bmm(queries, keys.transpose(1, 2))
    if keep is None:
        weights = scores.softmax(-1)
    else:
        weights = masked_softmax(scores.unflatten(0, (rows, heads)), keep[:, None, None]).flatten(0, 1)
    return torch.bmm(weights, values).unflatten(0, (rows, heads)).transpose(1, 2)
