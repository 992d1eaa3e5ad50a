"""Builds the position-wise feed-forward networks of a stack, dense or mixtures of experts."""

from saccade.config import schema
from saccade.layers.blocks.experts import Experts, Gate, HierarchicalGate
from saccade.layers.blocks.feedforward import Activation, FeedForward


def build_feedforward(s: schema.TransformerStack, number: int) -> FeedForward | Experts | None:
    """Build the feed-forward network of Transformer block `number`, counted from 1; None where `ff` is 0."""
    if s.experts is not None and number % s.experts.every_n_layers == 0:
        return build_experts(s.experts, s.dim, hidden=s.ff, activation=s.activation, dropout=s.ff_dropout, bias=s.bias)
    if not s.ff:
        return None
    return FeedForward(
        s.dim, hidden_dim=s.ff, activation=s.activation, gated=s.gated, dropout=s.ff_dropout, bias=s.bias
    )


def build_experts(
    s: schema.Experts,
    dim: int,
    *,
    hidden: int,
    activation: Activation = "relu",
    dropout: float = 0.0,
    bias: bool = True,
) -> Experts:
    """Build a mixture of experts; `hidden` is the width of each expert unless the table sets one."""
    return Experts(
        dim,
        hidden_dim=s.hidden_dim or hidden,
        gate=build_gate(s, dim),
        activation=activation,
        dropout=dropout,
        bias=bias,
        balance=s.balance_weight,
    )


def build_gate(s: schema.Experts, dim: int) -> Gate | HierarchicalGate:
    if s.groups == 1:
        return Gate(dim, num_experts=s.count, top_k=s.top_k, noise=s.noise)
    return HierarchicalGate(dim, groups=s.groups, num_experts=s.count, top_k=s.top_k, noise=s.noise)
