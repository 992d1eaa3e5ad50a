"""Recurrent cells and layers, encoders, and decoders with and without attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from saccade.layers.blocks.recurrent import CellName
from saccade.lectures.references.basics import apply_linear, compute_softmax, embed_tokens
from saccade.model.model import Model

State = tuple[Tensor, ...]  # h, and for an LSTM the cell state c
Direction = Literal["forward", "backward", "both"]


def step_cell(cell: CellName, layer: Any, x: Tensor, before: State, suffix: str = "_l0") -> State:
    """One step of a cell: Elman's network, GRU (Cho et al. 2014) or LSTM with forget gate (Gers et al. 2000)."""
    w, u, b, d = (getattr(layer, name + suffix) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    given, kept = x @ w.T + b, before[0] @ u.T + d
    if cell == "rnn":
        return (torch.tanh(given + kept),)
    if cell == "gru":
        (r, z, n), (s, y, m) = given.chunk(3, -1), kept.chunk(3, -1)
        reset, update = torch.sigmoid(r + s), torch.sigmoid(z + y)
        return ((1 - update) * torch.tanh(n + reset * m) + update * before[0],)
    i, f, g, o = (given + kept).chunk(4, -1)
    c = torch.sigmoid(f) * before[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def unroll(cell: CellName, layer: Any, x: Tensor, suffix: str = "_l0") -> list[State]:
    """All states of a layer that reads x (T, D) and starts from zeros."""
    zero = x.new_zeros(getattr(layer, f"weight_hh{suffix}").shape[1])
    states: list[State] = [(zero, zero) if cell == "lstm" else (zero,)]
    for row in x:
        states.append(step_cell(cell, layer, row, states[-1], suffix))
    return states[1:]


def run_recurrent_layer(
    cell: CellName, layer: Any, x: Tensor, direction: Direction = "forward"
) -> tuple[Tensor, State]:
    """The outputs of a layer for x (T, D) in the order of the tokens, and its last state."""
    if direction == "both":
        there, back = unroll(cell, layer, x), unroll(cell, layer, x.flip(0), "_l0_reverse")
        states = [torch.cat((a[0], b[0])) for a, b in zip(there, back[::-1], strict=True)]
        return torch.stack(states), tuple(map(torch.cat, zip(there[-1], back[-1], strict=True)))
    found = unroll(cell, layer, x.flip(0) if direction == "backward" else x)
    ordered = found[::-1] if direction == "backward" else found
    return torch.stack([state[0] for state in ordered]), found[-1]


class Encoding(NamedTuple):
    """What an encoder makes of one sequence."""

    states: Tensor  # (S, D)
    final: list[State]  # the last state of each layer


def read(model: Model, ids: Sequence[int], *, cell: CellName, direction: Direction = "forward") -> Encoding:
    """Stacked recurrent layers that read from left to right, from right to left, or in both directions."""
    x, final = embed_tokens(model.reader.embedding, torch.tensor(ids)), []
    for layer in model.reader.stack.layers:
        x, last = run_recurrent_layer(cell, layer, x, direction)
        final.append(last)
    return Encoding(x, final)


def predict_initial(cell: CellName, decoder: Any, c: Tensor) -> list[State]:
    """s_0 = tanh(W c + b) of each layer, from a summary c (..., D) of the source."""
    layers, parts = len(decoder.recurrence.layers), 2 if cell == "lstm" else 1
    found = torch.tanh(apply_linear(decoder.first.predict, c)).unflatten(-1, (layers, parts, -1))
    return [layer.unbind(-2) for layer in found.unbind(-3)]


def write(
    model: Model, initial: Sequence[State], ids: Sequence[int], *, cell: CellName, context: Tensor | None = None
) -> Tensor:
    """Logits of a decoder s_t = g(y_{t-1}, s_{t-1}, c) of stacked layers; c enters all of them, if there is one."""
    states, outputs = list(initial), []
    for x in embed_tokens(model.writer.embedding, torch.tensor(ids)):
        for number, layer in enumerate(model.writer.stack.recurrence.layers):
            given = x if context is None else torch.cat((x, context))
            states[number] = step_cell(cell, layer, given, states[number])
            x = states[number][0]  # the input of the layer above
        outputs.append(x)
    return apply_linear(model.writer.output, torch.stack(outputs))


# ---- decoders with attention


class Step(NamedTuple):
    """What a decoder with attention computes in one step, or in all steps (B, T, ...)."""

    outputs: Tensor  # (B, D), before the output layer
    weights: Tensor  # (B, S)
    contexts: Tensor  # (B, D)
    queries: Tensor  # (B, D), s_{t-1}
    states: Tensor  # (B, D), s_t


def compute_additive_weights(score: Any, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax_i v . tanh(W s + k_i) for queries s (..., D) and projected keys k = U h (..., S, E)."""
    hidden = torch.tanh(apply_linear(score.query, query)[..., None, :] + keys)
    return compute_softmax((hidden @ score.energy.weight.T)[..., 0], mask)


def write_with_attention(
    cell: CellName, decoder: Any, x: Tensor, states: Tensor, mask: Tensor | None = None, *, summary: Tensor
) -> Step:
    """Bahdanau et al. 2015: a_t from s_{t-1}, c_t = sum_i a_ti h_i, s_t from y_{t-1}, s_{t-1}, c_t, and the readout.

    s_0 = tanh(W c) where c is `summary`; with a gate, c_t is multiplied by sigmoid(g . s_{t-1} + b) (Xu et al. 2015).
    x (B, T, D) are embedded targets.
    """
    state = predict_initial(cell, decoder, summary)
    steps = [step_with_attention(cell, decoder.recurrence, x[:, t], states, mask, state) for t in range(x.shape[1])]
    return Step(*(torch.stack(part, 1) for part in zip(*steps, strict=True)))


def average(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real states of each row."""
    return torch.stack([row[real].mean(0) for row, real in zip(states, mask, strict=True)])


def step_with_attention(
    cell: CellName, recurrence: Any, token: Tensor, states: Tensor, mask: Tensor | None, state: list[State]
) -> Step:
    """One step; the list `state` is updated."""
    score, query = recurrence.cross.score, state[0][0]
    weights = compute_additive_weights(score, query, states @ score.key.weight.T, mask)
    context = torch.einsum("bs,bsd->bd", weights, states)
    if recurrence.gate is not None:
        context = context * torch.sigmoid(apply_linear(recurrence.gate, query))
    below = token
    for number, layer in enumerate(recurrence.layers):
        state[number] = step_cell(cell, layer, torch.cat((below, context), -1), state[number])
        below = state[number][0]
    output = torch.tanh(apply_linear(recurrence.readout, torch.cat((below, context, token), -1)))
    return Step(output, weights, context, query, below)
