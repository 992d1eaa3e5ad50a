"""Builds Transformer stacks from their settings."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saccade.config import schema
from saccade.config.stacks import DEFAULT_NORM_EPSILON
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.layers.attention.multihead import (
    CrossAttention,
    Form,
    PositionalAttention,
    SelfAttention,
    get_head_dim,
)
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.reversible import ReversibleStack
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.norm import LayerNorm, RMSNorm
from saccade.model.build.feedforward import build_feedforward
from saccade.model.build.reversible import build_reversible
from saccade.model.build.scores import build_score

_block_callbacks: list[Callable[[nn.Module], None]] = []


@contextmanager
def finish_blocks(callback: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call back with every block that is built inside the block, as soon as it is initialized."""
    _block_callbacks.append(callback)
    try:
        yield
    finally:
        _block_callbacks.remove(callback)


def build_transformer(
    s: schema.TransformerStack, position_settings: Any, *, memory_dim: int | None, causal: bool, train: schema.Train
) -> TransformerStack | ReversibleStack:
    """The stack of a reader or, with `memory_dim`, of a writer that attends to memory; `where` are its positions."""
    if s.residual == "reversible":
        return build_reversible(s, causal=causal)
    blocks = [
        build_block(s, position_settings, term, number=number, memory_dim=memory_dim)
        for number, term in enumerate(
            build_score_terms(position_settings, s, causal=causal)[: 1 if s.share_layers else None], start=1
        )
    ]
    blocks = blocks * s.layers if s.share_layers else blocks
    final = build_norm(s) if s.norm == "pre" else None
    return TransformerStack(
        blocks, dim=s.dim, causal=causal, window=get_window_sizes(s), norm=final, recompute=train.recompute,
        autocast_residual=train.residual_precision == "bf16",
    )  # fmt: skip


def get_window_sizes(s: schema.TransformerStack) -> list[int | None] | None:
    """Return the attention window of each layer (None: unlimited); a shorter list in the settings is repeated."""
    if s.window is None:
        return None
    return [None if reach == "none" else reach for reach, _ in zip(cycle(s.window), range(s.layers), strict=False)]


def build_block(
    s: schema.TransformerStack,
    position_settings: Any,
    term: positions.ScoreTerm | None,
    *,
    number: int,
    memory_dim: int | None,
) -> Block:
    head_dim = get_head_dim(s.dim, heads=s.heads, form=get_head_form(s))
    attention = SelfAttention(
        s.dim,
        heads=s.heads if s.kv_heads is None else (s.heads, s.kv_heads),
        form=get_head_form(s),
        bias=s.bias and s.attention_bias,
        scale=s.score.kind == "scaled-dot" and s.scale_attention is True,
        dropout=s.attention_dropout,
        rotary=build_rotary(position_settings, head_dim),
        term=term,
    )
    set_score(attention, s.score, s)
    check_term(attention, s, position_settings)
    cross = None
    if memory_dim is not None:
        cross_table = s.cross_score or s.score
        cross = CrossAttention(
            s.dim,
            heads=s.heads,
            memory_dim=memory_dim,
            form=get_head_form(s),
            bias=s.bias and s.attention_bias,
            scale=cross_table.kind == "scaled-dot" and s.scale_attention is True,
            dropout=s.attention_dropout,
        )
        set_score(cross, cross_table, s)
    feedforward = build_feedforward(s, number)
    residuals = [build_residual(s, number) for sublayer in (attention, cross, feedforward) if sublayer is not None]
    if s.scale_attention == "first":
        scale_down_queries(attention.project.weight[:, : attention.queries_per_kv_head], head_dim)
        if cross is not None:
            scale_down_queries(cross.query.weight, head_dim)
    block = Block(attention, feedforward, residuals=residuals, cross=cross)
    for callback in _block_callbacks:
        callback(block)
    return block


def complete_parallel_blocks(
    stack: TransformerStack, s: schema.TransformerStack, *, attend_self: bool, positional: bool
) -> None:
    """Give the blocks of a non-autoregressive writer what Gu et al. 2018 add: others-only and positional attention."""
    for number, block in enumerate(dict.fromkeys(stack.blocks), start=1):
        block.self.excludes_self = not attend_self
        if positional:
            attention = PositionalAttention(
                s.dim, heads=s.heads, form=get_head_form(s), bias=s.bias and s.attention_bias,
                dropout=s.attention_dropout,
            )  # fmt: skip
            block.add_positional(attention, build_residual(s, number))


def build_residual(s: schema.TransformerStack, number: int) -> Residual:
    """Build the residual connection of a sublayer of block `number`, counted from 1."""
    order: Literal["post", "pre"] = "pre" if s.norm == "pre" else "post"
    return Residual(
        build_norm(s), order=order, dropout=s.dropout, adds=bool(s.residual), drop_path=get_drop_path_rate(s, number)
    )


def set_score(attention: SelfAttention | CrossAttention, table: Any, s: schema.TransformerStack) -> None:
    """Set the score of multi-head attention; dot products are what it computes by itself."""
    if table.kind not in ("scaled-dot", "dot"):
        head_dim = attention.heads.head_dim
        attention.heads.set_score(build_score(table, head_dim, head_dim, heads=s.heads))


def check_term(attention: SelfAttention, s: schema.TransformerStack, position_settings: Any) -> None:
    """Refuse relative positions that are dot products with the query, where the score is not a dot product."""
    term = attention.heads.term
    if term is not None and term.uses_query and not attention.heads.is_dot_product:
        raise SaccadeError(
            f'positions.kind = "{position_settings.kind}" is a part of a dot product, got stack.score = '
            f'"{s.score.kind}"; use "alibi", "bucketed", "rotary" or positions at the input'
        )


def get_drop_path_rate(s: schema.TransformerStack, number: int) -> float:
    """Stochastic depth rate of a block: rises linearly from 0 in the first to `drop_path` in the last."""
    return s.drop_path if s.share_layers else s.drop_path * (number - 1) / max(1, s.layers - 1)


@torch.no_grad()
def scale_down_queries(queries: Tensor, head_dim: int) -> None:
    """Divide the initial query weights by sqrt(d_k), which replaces the scaling of scores (T5, Raffel et al. 2020)."""
    queries /= math.sqrt(head_dim)


def get_head_form(s: schema.TransformerStack) -> Form:
    if s.value_dim is not None:
        return s.head_dim or s.dim // s.heads, s.value_dim
    return s.head_projection if s.head_dim is None else s.head_dim


def build_norm(s: schema.TransformerStack) -> nn.Module:
    if s.norm == "none":
        return nn.Identity()
    if s.norm_kind == "layer":
        return LayerNorm(s.dim, eps=s.norm_epsilon or DEFAULT_NORM_EPSILON["layer"])
    return RMSNorm(s.dim, eps=s.norm_epsilon or DEFAULT_NORM_EPSILON["rms"])


def build_rotary(position_settings: Any, head_dim: int) -> positions.Rotary | None:
    if position_settings.kind != "rotary":
        return None
    stretch = (
        None
        if position_settings.scaling is None
        else positions.RotaryScaling(*position_settings.scaling.model_dump().values())
    )
    return positions.Rotary(head_dim, base=position_settings.base, scaling=stretch)


def build_score_terms(
    position_settings: Any, s: schema.TransformerStack, *, causal: bool
) -> list[positions.ScoreTerm | None]:
    """Build the relative-position term of each layer's scores; layers of T5 share one table, those of Shaw do not."""
    head_dim = get_head_dim(s.dim, heads=s.heads, form=get_head_form(s))
    match position_settings.kind:
        case "shaw":
            return [positions.Shaw(head_dim, max_distance=position_settings.max_distance) for _ in range(s.layers)]
        case "bucketed":
            shared = positions.Bucketed(
                s.heads,
                buckets=position_settings.buckets,
                max_distance=position_settings.max_distance,
                bidirectional=not causal,
            )
            return [shared] * s.layers
        case "transformer-xl":
            settings = {"content": position_settings.content_bias, "segments": position_settings.relative_segments}
            return [
                positions.TransformerXL(s.dim, heads=s.heads, head_dim=head_dim, **settings) for _ in range(s.layers)
            ]
        case "alibi":
            return [positions.Alibi(s.heads)] * s.layers
    return [None] * s.layers
