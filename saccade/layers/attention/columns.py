"""The attention layer as lecture S0 writes it: items are columns, scores are not scaled, heads keep the full width.

    H_h = V_h H SoftMax((K_h H)^T Q_h H),   H' = sigmoid(F concat_h(H_h) + b)

Forward and backward are written out, matrix by matrix; autograd is only told of the result. D features, N items.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn


def softmax(m: Float[Tensor, "J N"]) -> Float[Tensor, "J N"]:
    """exp(M) / (1^T exp(M)): every column sums to one. Its largest number is taken away, which changes nothing."""
    powers = torch.exp(m - m.amax(0, keepdim=True))
    return powers / powers.sum(0, keepdim=True)


def argmax(m: Float[Tensor, "J N"]) -> Float[Tensor, "J N"]:
    """Hard attention: each column has a single one, at its largest number."""
    return torch.zeros_like(m).scatter_(0, m.argmax(0, keepdim=True), 1.0)


class Head(NamedTuple):
    """What one head has computed."""

    query: Float[Tensor, "D N"]
    key: Float[Tensor, "D N"]
    value: Float[Tensor, "D N"]
    weights: Float[Tensor, "N N"]  # column i: what item i looks at
    output: Float[Tensor, "D N"]


def head_forward(h: Float[Tensor, "D N"], stacked: Float[Tensor, "P D"], hard: bool) -> Head:
    """Q, K and V stand on top of each other, so that one product does for all three."""
    query, key, value = (stacked @ h).chunk(3)
    scores = key.T @ query
    weights = argmax(scores) if hard else softmax(scores)
    return Head(query, key, value, weights, value @ weights)


def head_backward(grad: Float[Tensor, "D N"], head: Head, hard: bool) -> Float[Tensor, "P N"]:
    """From the gradient of a head's output to that of its queries, keys and values, on top of each other."""
    query, key, value, weights, _ = head
    to_value = grad @ weights.T
    if hard:  # which item is the largest does not change with a small step
        return torch.cat((torch.zeros_like(query), torch.zeros_like(key), to_value))
    to_weights = value.T @ grad
    to_scores = weights * (to_weights - (weights * to_weights).sum(0, keepdim=True))
    return torch.cat((key @ to_scores, query @ to_scores.T, to_value))


class _Layer(torch.autograd.Function):
    """All heads and the layer over them."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, stacked: Tensor, weight: Tensor, bias: Tensor, hard: bool) -> Tensor:
        heads = [head_forward(h, matrices, hard) for matrices in stacked]
        joined = torch.cat([head.output for head in heads])
        output = torch.sigmoid(weight @ joined + bias)
        ctx.save_for_backward(h, stacked, weight, joined, output, *(part for head in heads for part in head))
        ctx.hard = hard
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, stacked, weight, joined, output, *parts = ctx.saved_tensors
        heads = [Head(*parts[i : i + 5]) for i in range(0, len(parts), 5)]
        inner = grad * output * (1 - output)
        to_joined = (weight.T @ inner).chunk(len(heads))
        to_products = [head_backward(one, head, ctx.hard) for one, head in zip(to_joined, heads, strict=True)]
        to_h = sum(matrices.T @ one for matrices, one in zip(stacked, to_products, strict=True))
        to_stacked = torch.stack([one @ h.T for one in to_products])
        return to_h, to_stacked, inner @ joined.T, inner.sum(1, keepdim=True), None


class ColumnLayer(nn.Module):
    """One level of S0's Transformer: H (D x N) to H' (D x N). With `hard`, an item attends to one item per head."""

    def __init__(self, dim: int, *, heads: int, hard: bool = False) -> None:
        super().__init__()
        self.hard = hard
        self.stacked = nn.Parameter(torch.randn(heads, 3 * dim, dim) * dim**-0.5)  # Q, K, V of each head
        self.weight = nn.Parameter(torch.randn(dim, heads * dim) * (heads * dim) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(dim, 1))

    def forward(self, h: Float[Tensor, "D N"]) -> Float[Tensor, "D N"]:
        return _Layer.apply(h, self.stacked, self.weight, self.bias, self.hard)

    def attention(self, h: Float[Tensor, "D N"]) -> Float[Tensor, "heads N N"]:
        """Every head's weights; column i is what item i looks at."""
        return torch.stack([head_forward(h, matrices, self.hard).weights for matrices in self.stacked])
