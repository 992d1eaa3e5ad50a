"""Builds reversible Transformer stacks (Reformer, Kitaev et al. 2020) from their settings."""

from itertools import cycle, islice

from torch import nn

from saccade.config import schema
from saccade.config.stacks import DEFAULT_NORM_EPSILON
from saccade.layers.attention.local import LocalAttention
from saccade.layers.attention.lsh import Hashing, LshAttention
from saccade.layers.attention.multihead import Form
from saccade.layers.blocks.reversible import ReversibleBlock, ReversibleStack
from saccade.model.build.feedforward import build_feedforward


def build_reversible(s: schema.TransformerStack, *, causal: bool) -> ReversibleStack:
    """Build layers with full, local or LSH attention; `s.attention` lists their order and is repeated as needed."""
    blocks = [build_block(s, kind, causal=causal) for kind in islice(cycle(s.attention), s.layers)]
    return ReversibleStack(blocks, dim=s.dim, norm=build_norm(s, 2 * s.dim))


def build_block(s: schema.TransformerStack, kind: str, *, causal: bool) -> ReversibleBlock:
    feedforward = build_feedforward(s, number=1)
    assert feedforward is not None, "the settings were checked"
    return ReversibleBlock(
        build_attention(s, kind, causal=causal),
        feedforward,
        norms=[build_norm(s, s.dim), build_norm(s, s.dim)],
        dropout=s.dropout,
        chunk=s.chunks.feedforward,
    )


def build_attention(s: schema.TransformerStack, kind: str, *, causal: bool) -> LocalAttention | LshAttention:
    form: Form = s.head_projection if s.head_dim is None else s.head_dim
    chunks, dropout = s.chunks, s.attention_dropout
    if kind == "lsh":
        other = chunks.local if "local" in s.attention[: s.layers] else None
        hashing = Hashing(chunks.hashes, chunks.length, chunks.buckets, chunks.seed, other_chunk=other)
        return LshAttention(s.dim, heads=s.heads, hashing=hashing, form=form, causal=causal, dropout=dropout)
    chunk = None if kind == "full" else chunks.local or chunks.length
    return LocalAttention(s.dim, heads=s.heads, chunk=chunk, form=form, causal=causal, dropout=dropout)


def build_norm(s: schema.TransformerStack, dim: int) -> nn.Module:
    epsilon = s.norm_epsilon or DEFAULT_NORM_EPSILON[s.norm_kind]
    return nn.LayerNorm(dim, eps=epsilon) if s.norm_kind == "layer" else nn.RMSNorm(dim, eps=epsilon)
