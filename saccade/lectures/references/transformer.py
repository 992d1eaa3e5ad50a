"""Heads, attention layers, blocks and whole Transformers: encoder-decoder, encoders, decoders, two streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.layers.blocks.transformer import TransformerStack
from saccade.lectures.references.basics import (
    EPSILON,
    apply_layer_norm,
    apply_linear,
    build_causal_mask,
    compute_sinusoids,
    compute_softmax,
    embed,
    find_segments,
    gelu,
    relu,
)
from saccade.model.model import Model

ScoreFn = Callable[[int, Tensor, Tensor], Tensor]  # head, queries (..., Q, E), keys (..., K, E) -> scores (..., Q, K)


class Style(NamedTuple):
    """The form of a Transformer's blocks."""

    norm: Callable[[Any, Tensor, float], Tensor] = apply_layer_norm
    epsilon: float = EPSILON  # of the norms
    activation: Callable[[Tensor], Tensor] = relu
    pre_norm: bool = False
    residual: bool = True  # inputs are added to the outputs of sublayers
    scaled: bool = True  # scores are divided by √E
    gated: bool = False  # the feed-forward network multiplies two maps
    relative: bool = False  # scores have terms of relative positions
    shared: bool = False  # all layers have the weights of the first

    def normalize(self, norm: Any, x: Tensor) -> Tensor:
        return self.norm(norm, x, self.epsilon)


POST_NORM = Style()  # of Vaswani et al. 2017


# ---- attention


class Head(NamedTuple):
    """One head of attention in the letters of the notes: Q, K, V, E = f(Q, K), A = softmax(E), Y = A V."""

    q: Tensor
    k: Tensor
    v: Tensor
    e: Tensor
    a: Tensor
    y: Tensor


def project_heads(projection: Any, x: Tensor) -> list[Tensor]:
    """The parts (..., H, T, E) of all heads, such as queries, keys and values, by a weight (H, parts, E, D)."""
    weight, bias = projection.weight, projection.bias
    if weight.shape[-1] < x.shape[-1]:  # each head has its own slice of the input
        y = torch.einsum("...thd,hped->p...hte", x.unflatten(-1, (len(weight), -1)), weight)
    else:
        y = torch.einsum("...td,hped->p...hte", x, weight)
    return list(y) if bias is None else [part + bias[:, number, None] for number, part in enumerate(y)]


def score_by_dot_product(head: int, q: Tensor, k: Tensor) -> Tensor:
    """Q K^T, not scaled."""
    return q @ k.mT


def compute_heads(
    layer: Any, x: Tensor, *, memory: Tensor | None = None, allowed: Tensor | None = None, score: ScoreFn | None = None
) -> list[Head]:
    """Every head of attention on x (..., T, D), or from x to `memory`; its scores are Q K^T / √E unless given."""
    source, heads = x if memory is None else memory, []
    if hasattr(layer, "memory"):  # cross-attention
        parts = [*project_heads(layer.query, x), *project_heads(layer.memory, source)]
    else:
        parts = [project_heads(layer.project, x)[0], *project_heads(layer.project, source)[1:]]
    for number, (q, k, v) in enumerate(zip(*(part.unbind(-3) for part in parts), strict=True)):
        e = q @ k.mT / math.sqrt(q.shape[-1]) if score is None else score(number, q, k)
        a = compute_softmax(e, allowed)
        heads.append(Head(q, k, v, e, a, a @ v))
    return heads


def join_heads(heads: Sequence[Head]) -> Tensor:
    """Concat(head_1, ..., head_H)"""
    return torch.cat([head.y for head in heads], -1)


def compute_attention(
    layer: Any, x: Tensor, *, memory: Tensor | None = None, allowed: Tensor | None = None, score: ScoreFn | None = None
) -> Tensor:
    """Concat(head_1, ..., head_H) W_O; without W_O where heads split the input."""
    joined = join_heads(compute_heads(layer, x, memory=memory, allowed=allowed, score=score))
    return apply_linear(layer.heads.out, joined) if hasattr(layer.heads.out, "weight") else joined


def build_relative_score(term: Any, places: Tensor, keys: int, *, segments: Tensor | None = None) -> ScoreFn:
    """(q + u) . k + (q + v) . W r(j - i) + (q + w) . s (Dai et al. 2019, Yang et al. 2019), with q divided by √E.

    Queries are at the positions `places` (Q,). A model may have no u; the last term is that of `segments` (K,).
    """
    distances, content = torch.arange(keys) - places[:, None], getattr(term, "content", None)
    rounded = compute_sinusoids(distances.flatten(), term.project.weight.shape[1]).float().double()  # as in the models
    relative = (rounded @ term.project.weight.T).view(*distances.shape, len(term.bias), -1)  # (Q, K, H, E)

    def score(head: int, q: Tensor, k: Tensor) -> Tensor:
        q = q / math.sqrt(q.shape[-1])
        e = (q if content is None else q + content[head]) @ k.mT
        e = e + torch.einsum("...qe,qke->...qk", q + term.bias[head], relative[:, :, head])
        if segments is None:
            return e
        other = (segments[places][:, None] != segments).long()  # 0: the same segment
        return e + torch.einsum("...qe,qke->...qk", q + term.segment_bias[head], term.segments[head][other])

    return score


# ---- blocks


def compute_feedforward(network: Any, x: Tensor, style: Style = POST_NORM) -> Tensor:
    """f(x W_1 + b_1) W_2 + b_2, where f is the rectifier unless the style has another one."""
    hidden = style.activation(apply_linear(network.up, x))
    return apply_linear(network.down, hidden * apply_linear(network.gate, x) if style.gated else hidden)


def run_block(
    block: Any,
    x: Tensor,
    style: Style = POST_NORM,
    *,
    allowed: Tensor | None = None,
    score: ScoreFn | None = None,
    memory: Tensor | None = None,
    memory_allowed: Tensor | None = None,
) -> Tensor:
    """LN(x + f(x)), or x + f(LN(x)), for self-attention, cross-attention to `memory` and feed-forward network f."""
    plain = None if style.scaled else score_by_dot_product
    sublayers: list[Callable[[Tensor], Tensor]] = [
        partial(compute_attention, block.self, allowed=allowed, score=score or plain)
    ]
    if memory is not None:
        cross = partial(compute_attention, block.cross, memory=memory, allowed=memory_allowed, score=plain)
        sublayers.append(cross)
    if block.feedforward is not None:
        sublayers.append(partial(compute_feedforward, block.feedforward, style=style))
    for sublayer, residual in zip(sublayers, block.residuals, strict=True):
        y = sublayer(style.normalize(residual.norm, x) if style.pre_norm else x)
        y = x + y if style.residual else y
        x = y if style.pre_norm else style.normalize(residual.norm, y)
    return x


def run_stack(
    stack: TransformerStack,
    x: Tensor,
    style: Style = POST_NORM,
    *,
    allowed: Sequence[Tensor | None] = (None,),
    score: ScoreFn | None = None,
    memory: Tensor | None = None,
    memory_allowed: Tensor | None = None,
) -> Tensor:
    """All blocks, and the final norm if they are pre-norm; `allowed` are the masks (..., T, T) of layers in turn.

    `score` computes the scores of self-attention; cross-attention reads `memory`.
    """
    blocks: Any = stack.blocks
    for block, mask in zip(blocks, itertools.cycle(allowed), strict=False):
        own = blocks[0] if style.shared else block
        if style.relative:
            score = build_relative_score(own.self.heads.term, torch.arange(x.shape[-2]), x.shape[-2])
        x = run_block(own, x, style, allowed=mask, score=score, memory=memory, memory_allowed=memory_allowed)
    return style.normalize(stack.norm, x) if style.pre_norm else x


# ---- whole models


def encode(
    model: Model, ids: Tensor, mask: Tensor | None = None, style: Style = POST_NORM, *, x: Tensor | None = None
) -> Tensor:
    """The states of the Transformer's encoder; `x` replaces the embedded words."""
    x = embed(model.reader.embedding, ids) if x is None else x
    return run_stack(model.reader.stack, x, style, allowed=[None if mask is None else mask[..., None, :]])


def decode(
    model: Model, ids: Tensor, memory: Tensor, memory_mask: Tensor | None = None, style: Style = POST_NORM
) -> Tensor:
    """The states of the Transformer's decoder, whose position i attends to those up to i and to all real words read."""
    x, causal = embed(model.writer.embedding, ids), build_causal_mask(ids.shape[-1])
    read = None if memory_mask is None else memory_mask[..., None, :]
    return run_stack(model.writer.stack, x, style, allowed=[causal], memory=memory, memory_allowed=read)


def encode_text(model: Model, ids: Tensor, style: Style, mask: Tensor | None = None) -> Tensor:
    """The states of BERT, RoBERTa and ALBERT: norm of word + position + segment, the map of a narrow embedding, layers.

    A segment ends with END; in a model with one segment vector, all words have that one.
    """
    embedding = model.reader.embedding
    x = embedding.tokens.weight[ids] + embedding.positions.table.weight[: ids.shape[-1]]
    if embedding.segments is not None:
        table = embedding.segments.weight
        x = x + table[find_segments(ids).clamp(max=len(table) - 1)]
    x = style.normalize(embedding.norm, x)
    x = x if embedding.project is None else apply_linear(embedding.project, x)
    return run_stack(model.reader.stack, x, style, allowed=[None if mask is None else mask[..., None, :]])


def decode_text(part: Any, ids: Tensor, style: Style, windows: Sequence[int | None] = (None,)) -> Tensor:
    """The states of a decoder without cross-attention (GPT, Gopher): learned or relative positions, causal.

    `windows` of layers in turn: how many earlier words they see.
    """
    x = part.embedding.tokens.weight[ids]
    x = x if style.relative else x + part.embedding.positions.table.weight[: ids.shape[-1]]
    return run_stack(part.stack, x, style, allowed=[build_causal_mask(ids.shape[-1], window) for window in windows])


class Streams(NamedTuple):
    """What XLNet computes for one segment."""

    content: Tensor  # h (T, D)
    query: Tensor  # g at the predicted positions
    inputs: list[Tensor]  # of each block: the memory of the next segment


def compute_two_streams(
    model: Model,
    ids: Tensor,
    order: Tensor,
    *,
    at: Tensor,
    segments: Tensor,
    past: Sequence[Tensor] = (),
) -> Streams:
    """Content h, and queries g at the positions `at`, for one segment (Yang et al. 2019).

    `order` is the rank of each word; words of rank -1 are visible to all. `past` has the memory of each block, and
    `segments` are those of memory and words.
    """
    style, size, old = Style(activation=gelu, epsilon=1e-12), len(ids), len(past[0]) if past else 0
    h, g, inputs = model.reader.embedding.tokens.weight[ids], model.writer.query.expand(len(at), -1), []
    visible = (order[None] < order[:, None]) | (order[None] < 0)
    content = torch.cat((torch.ones(size, old, dtype=torch.bool), visible | torch.eye(size, dtype=torch.bool)), 1)
    query = torch.cat((torch.ones(len(at), old, dtype=torch.bool), visible[at]), 1)
    for number, block in enumerate(model.reader.stack.blocks):
        inputs.append(h)
        context, (first, second) = torch.cat((past[number], h)) if past else h, block.residuals
        streams = []
        for x, allowed, places in ((h, content, torch.arange(size)), (g, query, at)):
            score = build_relative_score(block.self.heads.term, old + places, len(context), segments=segments)
            y = x + compute_attention(block.self, x, memory=context, allowed=allowed, score=score)
            y = style.normalize(first.norm, y)
            streams.append(style.normalize(second.norm, y + compute_feedforward(block.feedforward, y, style)))
        h, g = streams
    return Streams(h, g, inputs)
