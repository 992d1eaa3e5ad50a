"""An attention layer whose items are columns, with unscaled scores and heads of the full width, as in CSE 5523.

    H_h = V_h H SoftMax((K_h H)^T Q_h H),   H' = sigmoid(F concat_h(H_h) + b)

Forward and backward passes are written out as matrix products; autograd only calls them. D features, N items.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn


def softmax(m: Float[Tensor, "J N"]) -> Float[Tensor, "J N"]:
    """exp(M) / (1^T exp(M)): every column sums to one. Subtracting its maximum first avoids overflow."""
    exponentials = torch.exp(m - m.amax(0, keepdim=True))
    return exponentials / exponentials.sum(0, keepdim=True)


def argmax(m: Float[Tensor, "J N"]) -> Float[Tensor, "J N"]:
    """Hard attention: each column is one-hot, at its largest entry."""
    return torch.zeros_like(m).scatter_(0, m.argmax(0, keepdim=True), 1.0)


class Head(NamedTuple):
    """The intermediate results of one head, which its backward pass needs."""

    query: Float[Tensor, "D N"]
    key: Float[Tensor, "D N"]
    value: Float[Tensor, "D N"]
    weights: Float[Tensor, "N N"]  # column i: the attention weights of item i
    output: Float[Tensor, "D N"]


def head_forward(h: Float[Tensor, "D N"], stacked: Float[Tensor, "P D"], hard: bool) -> Head:
    """`stacked` holds the matrices Q, K and V on top of each other: one product computes all three."""
    query, key, value = (stacked @ h).chunk(3)
    scores = key.T @ query
    weights = argmax(scores) if hard else softmax(scores)
    return Head(query, key, value, weights, value @ weights)


def head_backward(grad: Float[Tensor, "D N"], head: Head, hard: bool) -> Float[Tensor, "P N"]:
    """The gradients of queries, keys and values, stacked, given the gradient of a head's output."""
    query, key, value, weights, _ = head
    d_value = grad @ weights.T
    if hard:  # argmax is piecewise constant: no gradient reaches queries and keys
        return torch.cat((torch.zeros_like(query), torch.zeros_like(key), d_value))
    d_weights = value.T @ grad
    d_scores = weights * (d_weights - (weights * d_weights).sum(0, keepdim=True))
    return torch.cat((key @ d_scores, query @ d_scores.T, d_value))


class _ColumnAttention(torch.autograd.Function):
    """All heads, and the sigmoid layer over their concatenation."""

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
        d_inner = grad * output * (1 - output)
        d_joined = (weight.T @ d_inner).chunk(len(heads))
        d_products = [head_backward(one, head, ctx.hard) for one, head in zip(d_joined, heads, strict=True)]
        d_h = sum(matrices.T @ one for matrices, one in zip(stacked, d_products, strict=True))
        d_stacked = torch.stack([one @ h.T for one in d_products])
        return d_h, d_stacked, d_inner @ joined.T, d_inner.sum(1, keepdim=True), None


class ColumnLayer(nn.Module):
    """One layer of this Transformer: H (D x N) to H' (D x N). With `hard`, each head attends to a single item."""

    def __init__(self, dim: int, *, heads: int, hard: bool = False) -> None:
        super().__init__()
        self.hard = hard
        self.stacked = nn.Parameter(torch.randn(heads, 3 * dim, dim) * dim**-0.5)  # Q, K, V of each head
        self.weight = nn.Parameter(torch.randn(dim, heads * dim) * (heads * dim) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(dim, 1))

    def forward(self, h: Float[Tensor, "D N"]) -> Float[Tensor, "D N"]:
        return _ColumnAttention.apply(h, self.stacked, self.weight, self.bias, self.hard)

    def compute_weights(self, h: Float[Tensor, "D N"]) -> Float[Tensor, "heads N N"]:
        """The attention weights of every head; column i belongs to item i."""
        return torch.stack([head_forward(h, matrices, self.hard).weights for matrices in self.stacked])
