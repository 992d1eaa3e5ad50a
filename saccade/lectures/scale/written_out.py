"""The Transformers of the scaling table, written out from their papers with the weights of a model, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.tokenization.tokenizers import END

Weights = Mapping[str, Tensor]


class Form(NamedTuple):
    """How the layers of a model differ from those of the others."""

    activation: Callable[[Tensor], Tensor] = F.relu
    pre_norm: bool = False
    epsilon: float = 1e-5  # of the norms
    sinusoidal: bool = False  # sinusoidal positions, and token vectors times the square root of the width
    windows: tuple[int | None, ...] = (None,)  # keys before a query that it may attend to, of layers in turn


def encode_positions(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines of positions, interleaved (Vaswani et al. 2017, section 3.5)."""
    angles = positions[:, None] / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


def normalize(x: Tensor, weights: Weights, name: str, epsilon: float) -> Tensor:
    """LayerNorm, or RMSNorm where the norm has no bias."""
    if f"{name}.bias" not in weights:
        return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weights[f"{name}.weight"]
    x = x - x.mean(-1, keepdim=True)
    return (
        x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    )


def apply_linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].mT + weights.get(f"{name}.bias", torch.zeros(()))


def project(x: Tensor, weights: Weights, name: str, part: int) -> Tensor:
    """Queries, keys or values of all heads (B H N E); the matrix is stored as heads x parts x E x D."""
    y = torch.einsum("bnd,hed->bhne", x, weights[f"{name}.weight"][:, part])
    return y + weights[f"{name}.bias"][:, part, None] if f"{name}.bias" in weights else y


def attend(
    x: Tensor, context: Tensor, weights: Weights, name: str, allowed: Tensor, *, other: Tensor | None = None
) -> Tensor:
    """Multi-head attention of x to `context`, with the terms of relative positions and segments if it has them.

    score = q k / sqrt(E) + u k + (q / sqrt(E) + v) W r(j - i) + (q / sqrt(E) + w) s, as in Dai et al. 2019 and Yang et
    al. 2019, where u, v and w are divided by sqrt(E) too. `other`: whether query and key belong to different segments.
    """
    if f"{name}.memory.weight" in weights:  # cross-attention
        sources = (x, "query", 0), (context, "memory", 0), (context, "memory", 1)
    else:
        sources = (x, "project", 0), (context, "project", 1), (context, "project", 2)
    q, k, v = (project(states, weights, f"{name}.{part}", index) for states, part, index in sources)
    q, term = q / q.shape[-1] ** 0.5, f"{name}.heads.term"
    scores = (q + weights.get(f"{term}.content", torch.zeros(()))) @ k.mT
    if f"{term}.bias" in weights:
        distances = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        encoded = encode_positions(distances.flatten(), x.shape[-1]) @ weights[f"{term}.project.weight"].mT
        encoded = encoded.view(*distances.shape, q.shape[1], -1)
        scores = scores + torch.einsum("bhqe,qkhe->bhqk", q + weights[f"{term}.bias"], encoded)
    if other is not None:
        vectors = weights[f"{term}.segments"][:, other.long()]
        scores = scores + torch.einsum("bhqe,hbqke->bhqk", q + weights[f"{term}.segment_bias"], vectors)
    mixed = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1).nan_to_num(0.0) @ v
    return apply_linear(mixed.transpose(1, 2).flatten(2), weights, f"{name}.heads.out")


def attend_to_itself(x: Tensor, weights: Weights, name: str, allowed: Tensor) -> Tensor:
    return attend(x, x, weights, name, allowed)


def apply_feedforward(x: Tensor, weights: Weights, name: str, form: Form) -> Tensor:
    return apply_linear(form.activation(apply_linear(x, weights, f"{name}.up")), weights, f"{name}.down")


def run_layers(
    x: Tensor,
    weights: Weights,
    name: str,
    form: Form,
    allowed: Sequence[Tensor],
    memory: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """All layers of a stack, each with its mask of self-attention; `memory` are states and their mask."""
    for number, mask in enumerate(allowed):
        block = f"{name}.blocks.{number}"
        sublayers: list[Callable[[Tensor], Tensor]] = [
            partial(attend_to_itself, weights=weights, name=f"{block}.self", allowed=mask)
        ]
        if memory is not None:
            states, states_mask = memory
            cross = partial(attend, context=states, weights=weights, name=f"{block}.cross", allowed=states_mask)
            sublayers.append(cross)
        sublayers.append(partial(apply_feedforward, weights=weights, name=f"{block}.feedforward", form=form))
        for index, sublayer in enumerate(sublayers):
            norm = partial(normalize, weights=weights, name=f"{block}.residuals.{index}.norm", epsilon=form.epsilon)
            x = x + sublayer(norm(x)) if form.pre_norm else norm(x + sublayer(x))
    return normalize(x, weights, f"{name}.norm", form.epsilon) if form.pre_norm else x


def embed(ids: Tensor, weights: Weights, name: str, form: Form) -> Tensor:
    """Token, position and segment vectors, and their norm, as far as the model has them."""
    x = weights[f"{name}.tokens.weight"][ids]
    if form.sinusoidal:
        x = x * x.shape[-1] ** 0.5 + encode_positions(torch.arange(ids.shape[1]), x.shape[-1])
    if f"{name}.positions.table.weight" in weights:
        x = x + weights[f"{name}.positions.table.weight"][: ids.shape[1]]
    if f"{name}.segments.weight" in weights:
        table = weights[f"{name}.segments.weight"]
        x = x + table[find_segments(ids).clamp(max=len(table) - 1)]
    return normalize(x, weights, f"{name}.norm", form.epsilon) if f"{name}.norm.weight" in weights else x


def find_segments(ids: Tensor) -> Tensor:
    """The segment of each token: the number of end tokens before it."""
    ends = ids.eq(END).long()
    return ends.cumsum(1) - ends


# ---- whole models: their outputs for token ids and a mask of real tokens


def encode(weights: Weights, ids: Tensor, mask: Tensor, form: Form) -> Tensor:
    """The states of BERT and RoBERTa, and as one more state of each row its pooled first one."""
    layers = count_layers(weights, "reader")
    allowed = [mask[:, None].expand(-1, ids.shape[1], -1)] * layers
    states = run_layers(embed(ids, weights, "reader.embedding", form), weights, "reader.stack", form, allowed)
    if "writer.hidden.weight" not in weights:
        return states
    return torch.cat((states, apply_linear(states[:, :1], weights, "writer.hidden").tanh()), 1)


def continue_text(weights: Weights, ids: Tensor, form: Form) -> Tensor:
    """The logits of a decoder without cross-attention (GPT-2, GPT-3, Gopher)."""
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None]
    windows = [form.windows[n % len(form.windows)] for n in range(count_layers(weights, "writer"))]
    allowed = [causal if window is None else causal & causal.triu(-window) for window in windows]
    x = run_layers(embed(ids, weights, "writer.embedding", form), weights, "writer.stack", form, allowed)
    return apply_linear(x, weights, "writer.output")


def translate(weights: Weights, source: Tensor, mask: Tensor, target: Tensor, form: Form) -> Tensor:
    """The logits of an encoder-decoder Transformer; `target` begins with the start token."""
    memory = encode(weights, source, mask, form), mask[:, None].expand(-1, target.shape[1], -1)
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()[None]
    x = embed(target, weights, "writer.embedding", form)
    x = run_layers(x, weights, "writer.stack", form, [causal] * count_layers(weights, "writer"), memory)
    return apply_linear(x, weights, "writer.output")


def predict_permuted(weights: Weights, ids: Tensor, mask: Tensor, order: Tensor, form: Form) -> Tensor:
    """The logits of XLNet at each position, given the tokens before it in the factorization order."""
    before = (order[:, None, :] < order[:, :, None]) & mask[:, None]
    with_itself = before | torch.eye(ids.shape[1], dtype=torch.bool)
    segments = find_segments(ids)
    other = segments[:, :, None] != segments[:, None]
    content = embed(ids, weights, "reader.embedding", form)
    query = weights["writer.query"].expand_as(content)
    for number in range(count_layers(weights, "reader")):
        block = f"reader.stack.blocks.{number}"
        mixed = [attend(content, content, weights, f"{block}.self", with_itself, other=other)]
        mixed += [attend(query, content, weights, f"{block}.self", before, other=other)]
        content, query = (
            finish_block(x + y, weights, block, form) for x, y in zip((content, query), mixed, strict=True)
        )
    return apply_linear(query, weights, "writer.output")


def finish_block(x: Tensor, weights: Weights, block: str, form: Form) -> Tensor:
    """The rest of a post-norm block behind the residual connection of its self-attention."""
    x = normalize(x, weights, f"{block}.residuals.0.norm", form.epsilon)
    x = x + apply_feedforward(x, weights, f"{block}.feedforward", form)
    return normalize(x, weights, f"{block}.residuals.1.norm", form.epsilon)


def count_layers(weights: Weights, side: str) -> int:
    return sum(name.startswith(f"{side}.stack.blocks.") and name.endswith("self.project.weight") for name in weights)
