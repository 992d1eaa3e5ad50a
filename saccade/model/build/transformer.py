"""Transformer stacks from their settings."""

import math
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.config.stacks import EPSILON
from saccade.layers.attention import positions
from saccade.layers.attention.multihead import CrossAttention, Form, SelfAttention, width_of_head
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.reversible import ReversibleStack
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.norm import LayerNorm, RMSNorm
from saccade.model.build.feedforward import build_feedforward
from saccade.model.build.reversible import build_reversible


def build_transformer(
    s: schema.TransformerStack, where: Any, *, memory_dim: int | None, causal: bool, train: schema.Train
) -> TransformerStack | ReversibleStack:
    """The stack of a reader or, with `memory_dim`, of a writer that attends to memory; `where` are its positions."""
    if s.residual == "reversible":
        return build_reversible(s, causal=causal)
    blocks = [
        build_block(s, where, term, number=number, memory_dim=memory_dim)
        for number, term in enumerate(build_score_terms(where, s, causal=causal)[: 1 if s.share else None], start=1)
    ]
    blocks = blocks * s.layers if s.share else blocks
    final = build_norm(s) if s.norm == "pre" else None
    return TransformerStack(
        blocks, dim=s.dim, causal=causal, window=windows(s), norm=final, recompute=train.recompute,
        narrow=train.residual == "bf16",
    )  # fmt: skip


def windows(s: schema.TransformerStack) -> list[int | None] | None:
    """The window of each layer: a list is gone through again and again."""
    if s.window is None:
        return None
    return [None if reach == "none" else reach for reach, _ in zip(cycle(s.window), range(s.layers), strict=False)]


def build_block(
    s: schema.TransformerStack, where: Any, term: positions.ScoreTerm | None, *, number: int, memory_dim: int | None
) -> Block:
    head_dim = width_of_head(s.dim, heads=s.heads, form=form_of_heads(s))
    attention = SelfAttention(
        s.dim,
        heads=s.heads if s.kv_heads is None else (s.heads, s.kv_heads),
        form=form_of_heads(s),
        bias=s.bias and s.attention_bias,
        scale=s.scale is True,
        dropout=s.attention_dropout,
        rotary=build_rotary(where, head_dim),
        term=term,
    )
    cross = None
    if memory_dim is not None:
        cross = CrossAttention(
            s.dim,
            heads=s.heads,
            memory_dim=memory_dim,
            form=form_of_heads(s),
            bias=s.bias and s.attention_bias,
            scale=s.scale is True,
            dropout=s.attention_dropout,
        )
    feedforward = build_feedforward(s, number)
    order: Literal["post", "pre"] = "pre" if s.norm == "pre" else "post"
    residuals = [
        Residual(build_norm(s), order=order, dropout=s.dropout, adds=bool(s.residual), skip=skipped(s, number))
        for sublayer in (attention, cross, feedforward)
        if sublayer is not None
    ]
    if s.scale == "first":
        begin_small(attention.project.weight[:, :-2], head_dim)
        if cross is not None:
            begin_small(cross.query.weight, head_dim)
    return Block(attention, feedforward, residuals=residuals, cross=cross)


def skipped(s: schema.TransformerStack, number: int) -> float:
    """The share of rows that pass by the sublayers of a layer: none of the first, most of the last."""
    return s.drop_path if s.share else s.drop_path * (number - 1) / max(1, s.layers - 1)


@torch.no_grad()
def begin_small(queries: Tensor, head_dim: int) -> None:
    """First weights of queries divided by sqrt(d_k), in the place of all scores (Raffel et al. 2020, in their code)."""
    queries /= math.sqrt(head_dim)


def form_of_heads(s: schema.TransformerStack) -> Form:
    return s.heads_form if s.head_dim is None else s.head_dim


def build_norm(s: schema.TransformerStack) -> nn.Module:
    if s.norm == "none":
        return nn.Identity()
    if s.norm_kind == "layer":
        return LayerNorm(s.dim, eps=s.norm_epsilon or EPSILON["layer"])
    return RMSNorm(s.dim, eps=s.norm_epsilon or EPSILON["rms"])


def build_rotary(where: Any, head_dim: int) -> positions.Rotary | None:
    if where.kind != "rotary":
        return None
    stretch = None if where.stretch is None else positions.Stretch(**where.stretch.model_dump())
    return positions.Rotary(head_dim, base=where.base, stretch=stretch)


def build_score_terms(where: Any, s: schema.TransformerStack, *, causal: bool) -> list[positions.ScoreTerm | None]:
    """One score term for each layer: T5 shares its table between layers, Shaw et al. do not."""
    head_dim = width_of_head(s.dim, heads=s.heads, form=form_of_heads(s))
    match where.kind:
        case "shaw":
            return [positions.Shaw(head_dim, distance=where.distance) for _ in range(s.layers)]
        case "bucketed":
            shared = positions.Bucketed(s.heads, buckets=where.buckets, distance=where.distance, both_sides=not causal)
            return [shared] * s.layers
        case "transformer-xl":
            settings = {"content": where.content, "segments": where.segments}
            return [
                positions.TransformerXL(s.dim, heads=s.heads, head_dim=head_dim, **settings) for _ in range(s.layers)
            ]
        case "alibi":
            return [positions.Alibi(s.heads)] * s.layers
    return [None] * s.layers
