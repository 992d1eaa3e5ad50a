"""Independent implementations of three systems, written out from the formulas of their papers, for checks to compare.

They take the parameters of a model and nothing else of its code: one sequence and one step at a time, without masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from saccade.layers.blocks.recurrent import CellName
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.model import Model

State = tuple[Tensor, ...]  # h, and for an LSTM the cell state


# ---- recurrent networks


class Encoding(NamedTuple):
    """What an encoder makes of one sequence."""

    states: Tensor  # (S, D)
    final: list[State]  # the last state of each layer


class Decoding(NamedTuple):
    """What a decoder with attention computes for one sequence."""

    logits: Tensor  # (T, V)
    states: Tensor  # s_1 ... s_T
    contexts: Tensor  # c_1 ... c_T
    weights: Tensor  # (T, S)


def embed(embedding: Any, ids: Sequence[int]) -> Tensor:
    """Token vectors times √D, as in all recipes here."""
    vectors: Tensor = embedding.tokens.weight[list(ids)]
    return vectors * math.sqrt(vectors.shape[-1])


def step(cell: CellName, layer: Any, x: Tensor, before: State, suffix: str = "_l0") -> State:
    """One step of a cell: Elman's network, GRU (Cho et al. 2014) or LSTM with forget gate (Gers et al. 2000)."""
    w, u, b, d = (getattr(layer, name + suffix) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    given, kept = w @ x + b, u @ before[0] + d
    if cell == "rnn":
        return (torch.tanh(given + kept),)
    if cell == "gru":
        (r, z, n), (s, y, m) = given.chunk(3), kept.chunk(3)
        reset, update = torch.sigmoid(r + s), torch.sigmoid(z + y)
        return ((1 - update) * torch.tanh(n + reset * m) + update * before[0],)
    i, f, g, o = (given + kept).chunk(4)
    memory = torch.sigmoid(f) * before[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def unroll(cell: CellName, layer: Any, inputs: Sequence[Tensor], suffix: str = "_l0") -> list[State]:
    """All states of a layer that starts from zeros."""
    zero = inputs[0].new_zeros(getattr(layer, f"weight_hh{suffix}").shape[1])
    state: State = (zero, zero) if cell == "lstm" else (zero,)
    states = []
    for x in inputs:
        state = step(cell, layer, x, state, suffix)
        states.append(state)
    return states


def read(
    model: Model, ids: Sequence[int], *, cell: CellName, order: Literal["forward", "backward", "both"] = "forward"
) -> Encoding:
    """Stacked recurrent layers that read from left to right, from right to left, or in both directions."""
    x, final = list(embed(model.reader.embedding, ids)), []
    for layer in model.reader.stack.layers:
        there = unroll(cell, layer, x if order != "backward" else x[::-1])
        back = unroll(cell, layer, x[::-1], "_l0_reverse") if order == "both" else []
        final.append(tuple(map(torch.cat, zip(there[-1], back[-1], strict=True))) if back else there[-1])
        there, back = there[::-1] if order == "backward" else there, back[::-1]
        x = [torch.cat((a[0], b[0])) for a, b in zip(there, back, strict=True)] if back else [a[0] for a in there]
    return Encoding(torch.stack(x), final)


def predict_initial(model: Model, c: Tensor, *, states: int) -> list[State]:
    """s_0 = tanh(W c + b) of each layer; `states` tensors each."""
    w = model.writer.stack.first.predict
    layers = len(model.writer.stack.recurrence.layers)
    return [tuple(layer) for layer in torch.tanh(w.weight @ c + w.bias).reshape(layers, states, -1)]


def write(
    model: Model, initial: Sequence[State], ids: Sequence[int], *, cell: CellName, context: Tensor | None = None
) -> Tensor:
    """Logits of a decoder s_t = g(y_{t-1}, s_{t-1}, c) of stacked layers; c enters all of them, if there is one."""
    states, logits = list(initial), []
    for x in embed(model.writer.embedding, ids):
        for number, layer in enumerate(model.writer.stack.recurrence.layers):
            states[number] = step(cell, layer, x if context is None else torch.cat((x, context)), states[number])
            x = states[number][0]  # the input of the layer above
        logits.append(model.writer.output.weight @ x)
    return torch.stack(logits)


def write_with_attention(model: Model, h: Tensor, initial: State, ids: Sequence[int], *, cell: CellName) -> Decoding:
    """e_{t,i} = v·tanh(W s_{t-1} + U h_i), c_t = Σ_i a_{t,i} h_i, s_t = g(y_{t-1}, s_{t-1}, c_t), y_t from all three"""
    recurrence, state, steps = model.writer.stack.recurrence, initial, []
    score, readout = recurrence.cross.score, recurrence.readout
    for y in embed(model.writer.embedding, ids):
        e = torch.stack(
            [score.energy.weight[0] @ torch.tanh(score.query.weight @ state[0] + score.key.weight @ k) for k in h]
        )
        a = torch.exp(e - e.max()) / torch.exp(e - e.max()).sum()
        c = sum((a[i] * h[i] for i in range(len(h))), torch.zeros_like(h[0]))
        state = step(cell, recurrence.layers[0], torch.cat((y, c)), state)
        hidden = torch.tanh(readout.weight @ torch.cat((state[0], c, y)) + readout.bias)
        steps.append((model.writer.output.weight @ hidden, state[0], c, a))
    return Decoding(*map(torch.stack, zip(*steps, strict=True)))


# ---- the Transformer


def attend_heads(project: Tensor, out: Any, query: Tensor, memory: Tensor, *, causal: bool = False) -> Tensor:
    """Multi-head attention (Vaswani et al. 2017, section 3.2); `project` has W_Q, W_K, W_V and biases of each head."""
    heads = []
    for w_q, w_k, w_v in project:
        q, k, v = (x @ w[:, :-1].T + w[:, -1] for x, w in ((query, w_q), (memory, w_k), (memory, w_v)))
        e = q @ k.T / math.sqrt(q.shape[-1])
        e = e + torch.full_like(e, -torch.inf).triu(1) if causal else e
        heads.append((torch.exp(e) / torch.exp(e).sum(-1, keepdim=True)) @ v)
    return torch.cat(heads, -1) @ out.weight.T + out.bias


def normalize(norm: Any, x: Tensor) -> Tensor:
    """Layer normalization (Ba et al. 2016)."""
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def join(*parts: Any) -> Tensor:
    """The weights and biases of projections, side by side: (H, parts, E, D + 1)."""
    return torch.cat([torch.cat((part.weight, part.bias[..., None]), -1) for part in parts], 1)


def run_blocks(stack: TransformerStack, x: Tensor, memory: Tensor | None = None) -> Tensor:
    """Post-norm blocks of one sequence: an encoder's, or with `memory` a decoder's."""
    for block in stack.blocks:
        norms = [residual.norm for residual in block.residuals]
        own = block.self
        x = normalize(norms[0], x + attend_heads(join(own.project), own.heads.out, x, x, causal=memory is not None))
        if memory is not None:
            cross = block.cross
            x = normalize(norms[1], x + attend_heads(join(cross.query, cross.memory), cross.heads.out, x, memory))
        up, down = block.feedforward.up, block.feedforward.down
        hidden = (x @ up.weight.T + up.bias).clamp(min=0)
        x = normalize(norms[-1], x + hidden @ down.weight.T + down.bias)
    return x
