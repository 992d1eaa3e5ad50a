"""The networks that each position passes alone, one or a mixture of experts, from their part of a recipe."""

from saccade.config import schema
from saccade.layers.blocks.experts import Experts, Gate
from saccade.layers.blocks.feedforward import Activation, FeedForward


def build_feedforward(s: schema.TransformerStack, number: int) -> FeedForward | Experts | None:
    """That of block `number` of a Transformer, counted from 1."""
    if s.experts is not None and number % s.experts.every == 0:
        return build_experts(s.experts, s.dim, hidden=s.ff, activation=s.activation, dropout=s.ff_dropout, bias=s.bias)
    if not s.ff:
        return None
    return FeedForward(s.dim, hidden=s.ff, activation=s.activation, gated=s.gated, dropout=s.ff_dropout, bias=s.bias)


def build_experts(
    s: schema.Experts,
    dim: int,
    *,
    hidden: int,
    activation: Activation = "relu",
    dropout: float = 0.0,
    bias: bool = True,
) -> Experts:
    """`hidden` is their width where the recipe names none."""
    return Experts(
        dim,
        hidden=s.hidden or hidden,
        gate=Gate(dim, count=s.count, chosen=s.chosen, noise=s.noise),
        activation=activation,
        dropout=dropout,
        bias=bias,
        balance=s.balance,
    )
