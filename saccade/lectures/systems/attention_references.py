"""Reference computations, written out from the formulas of the papers; only the parameters come from the model.

They share no code with the layers that they are compared with. Everything is float64. B batch, S source length,
T target length, M width of the source states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.tokenization.tokenizers import START

State = tuple[Tensor, ...]  # of a cell: h, and c of an LSTM


def apply_linear(layer: Any, x: Tensor) -> Tensor:
    """W x + b"""
    y = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias


def embed_scaled(embedding: Any, ids: Tensor) -> Tensor:
    """The vectors of tokens, times sqrt(D) (Vaswani et al. 2017, section 3.4)."""
    table = embedding.tokens.weight
    found: Tensor = table[ids] * math.sqrt(table.shape[1])
    return found


def shift_targets(ids: Tensor) -> Tensor:
    """START, y_1, y_2 ...: what a writer has read before it writes y_1, y_2, y_3 ..."""
    return torch.cat((torch.full_like(ids[:, :1], START), ids[:, :-1]), 1)


def normalize_exponentials(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax over the last axis: exp(e_i) / sum_j exp(e_j), where the sum leaves out masked positions."""
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    powers = powers if mask is None else powers * mask
    return powers / powers.sum(-1, keepdim=True)


def normalize_features(norm: Any, x: Tensor) -> Tensor:
    """LayerNorm: (x - mean) / sqrt(variance + epsilon), times weight, plus bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


# ---- recurrent networks


def step_gates(parameters: Sequence[Tensor], x: Tensor, state: State) -> State:
    """One step of a GRU (state h) or an LSTM (state h, c), from its matrices and biases in torch's order."""
    w, u, b, d = parameters
    inputs, recurrent = x @ w.T + b, state[0] @ u.T + d
    if len(state) == 1:
        reset, update, new = zip(inputs.chunk(3, -1), recurrent.chunk(3, -1), strict=True)
        z = torch.sigmoid(update[0] + update[1])
        candidate = torch.tanh(new[0] + torch.sigmoid(reset[0] + reset[1]) * new[1])
        return ((1 - z) * candidate + z * state[0],)
    i, f, g, o = (inputs + recurrent).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def run_steps(parameters: Sequence[Tensor], x: Tensor, state: State) -> tuple[Tensor, State]:
    """All states h of a sequence x (T, I), and the last state."""
    states = []
    for row in x:
        state = step_gates(parameters, row, state)
        states.append(state[0])
    return torch.stack(states), state


def start_with_zeros(layer: Any) -> State:
    zeros = layer.weight_hh_l0.new_zeros(layer.hidden_size)
    return (zeros, zeros) if layer.mode == "LSTM" else (zeros,)


def run_recurrent_layer(layer: Any, x: Tensor) -> Tensor:
    """A recurrent layer over one sequence x (T, I), in both directions where it has two."""
    parameters = [*layer.parameters()]
    forward, _ = run_steps(parameters[:4], x, start_with_zeros(layer))
    if len(parameters) == 4:
        return forward
    backward, _ = run_steps(parameters[4:], x.flip(0), start_with_zeros(layer))
    return torch.cat((forward, backward.flip(0)), -1)


# ---- recurrent writers with attention


def compute_additive_weights(score: Any, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """softmax_i v . tanh(W s + k_i) for queries s (B, D) and projected keys k = U h (B, S, E)."""
    hidden = torch.tanh((query @ score.query.weight.T)[:, None] + keys)
    return normalize_exponentials((hidden @ score.energy.weight.T)[..., 0], mask)


class Written(NamedTuple):
    """What a recurrent writer computes for all target positions."""

    outputs: Tensor  # (B, T, D), before the output layer
    weights: Tensor  # (B, T, S)
    contexts: Tensor  # (B, T, M)
    queries: Tensor  # (B, T, D), s_{t-1}


def write_with_attention(
    decoder: Any, x: Tensor, states: Tensor, mask: Tensor, *, summary: Tensor | None = None
) -> Written:
    """Bahdanau et al. 2015: a_t from s_{t-1}, c_t = sum_i a_ti h_i, s_t from y_{t-1}, s_{t-1}, c_t, and the readout.

    s_0 = tanh(W c) where c is `summary`, by default the mean of the states; with a gate, c_t is multiplied by
    sigmoid(g . s_{t-1} + b) (Xu et al. 2015). x (B, T, D) are embedded targets.
    """
    state = predict_first_states(decoder.first, average(states, mask) if summary is None else summary)
    steps = [step_with_attention(decoder.recurrence, x[:, t], states, mask, state) for t in range(x.shape[1])]
    return Written(*(torch.stack(part, 1) for part in zip(*steps, strict=True)))


def average(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real states of each row."""
    return torch.stack([row[real].mean(0) for row, real in zip(states, mask, strict=True)])


def predict_first_states(first: Any, summary: Tensor) -> list[State]:
    """tanh(W c + b) for each layer, from the summary c (B, M) of the source."""
    layers, parts, dim = first.shape
    found = torch.tanh(apply_linear(first.predict, summary)).reshape(len(summary), layers, parts, dim)
    return [tuple(found[:, layer, part] for part in range(parts)) for layer in range(layers)]


def step_with_attention(
    recurrence: Any, token: Tensor, states: Tensor, mask: Tensor, state: list[State]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step; the list `state` is updated. Returns the output, the weights, the context and the query."""
    score, query = recurrence.cross.score, state[0][0]
    weights = compute_additive_weights(score, query, states @ score.key.weight.T, mask)
    context = sum((weights[:, i, None] * states[:, i] for i in range(states.shape[1])), torch.zeros(()).double())
    if recurrence.gate is not None:
        context = context * torch.sigmoid(apply_linear(recurrence.gate, query))
    below = token
    for number, layer in enumerate(recurrence.layers):
        state[number] = step_gates([*layer.parameters()], torch.cat((below, context), -1), state[number])
        below = state[number][0]
    output = torch.tanh(apply_linear(recurrence.readout, torch.cat((below, context, token), -1)))
    return output, weights, context, query


# ---- Transformers


def attend_with_heads(
    query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], value: tuple[Tensor, Tensor],
    *, inputs: tuple[Tensor, Tensor], allowed: Tensor,
) -> Tensor:  # fmt: skip
    """Each head softmax(Q K^T / sqrt(E)) V, concatenated; matrices (H, E, D) and biases (H, E) of each projection."""
    x, memory = inputs
    heads = []
    for h in range(len(query[0])):
        q, k, v = (
            part @ matrix[h].T + bias[h] for part, (matrix, bias) in ((x, query), (memory, key), (memory, value))
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        heads.append(normalize_exponentials(scores.masked_fill(~allowed, -1e30), allowed) @ v)
    return torch.cat(heads, -1)


def attend_to_itself(layer: Any, x: Tensor, allowed: Tensor) -> Tensor:
    project = layer.project
    parts = [(project.weight[:, i], project.bias[:, i]) for i in range(3)]
    return apply_linear(layer.heads.out, attend_with_heads(*parts, inputs=(x, x), allowed=allowed))


def attend_to_memory(layer: Any, x: Tensor, memory: Tensor) -> Tensor:
    query = (layer.query.weight[:, 0], layer.query.bias[:, 0])
    parts = [(layer.memory.weight[:, i], layer.memory.bias[:, i]) for i in range(2)]
    allowed = allow_all(memory.shape[1])
    return apply_linear(layer.heads.out, attend_with_heads(query, *parts, inputs=(x, memory), allowed=allowed))


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
}


def run_pre_norm_stack(
    transformer: Any, x: Tensor, allowed: Tensor, *, activation: str, memory: Tensor | None = None
) -> Tensor:
    """x + f(LayerNorm(x)) for self-attention, cross-attention to memory and feed-forward network, then LayerNorm.

    All states of the memory may be attended to.
    """
    for block in transformer.blocks:
        first, *others = (residual.norm for residual in block.residuals)
        x = x + attend_to_itself(block.self, normalize_features(first, x), allowed)
        if memory is not None:
            x = x + attend_to_memory(block.cross, normalize_features(others[0], x), memory)
        hidden = ACTIVATIONS[activation](apply_linear(block.feedforward.up, normalize_features(others[-1], x)))
        x = x + apply_linear(block.feedforward.down, hidden)
    return normalize_features(transformer.norm, x)


def allow_all(length: int) -> Tensor:
    """The mask (1, 1, T) of an encoder without padding."""
    return torch.ones(1, 1, length, dtype=torch.bool)


def allow_earlier(length: int) -> Tensor:
    """The causal mask (1, T, T)."""
    return torch.arange(length)[None, :, None] >= torch.arange(length)[None, None, :]


def make_sinusoids(length: int, dim: int) -> Tensor:
    """sin(t / 10000^(2i/D)) in even features, cos in odd ones (Vaswani et al. 2017, section 3.5)."""
    rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


# ---- convolutional networks


def run_residual_network(blocks: Any, pictures: Tensor) -> Tensor:
    """The feature map (B, C, Y, X) of residual blocks, from pixels scaled to -1 ... 1."""
    x = pictures.double() / 127.5 - 1
    for block in blocks:
        x = run_residual_block(block, x)
    return x


def run_residual_block(block: Any, x: Tensor) -> Tensor:
    """relu(GN(W2 * relu(GN(W1 * x))) + P * x) (He et al. 2016), with group normalization."""
    norms, widths = block.norms, block.first.weight.shape
    has_projection = block.first.stride != (1, 1) or widths[0] != widths[1]
    y = F.conv2d(x, block.first.weight, stride=block.first.stride, padding=1)
    y = F.group_norm(y, norms[0].num_groups, norms[0].weight, norms[0].bias, norms[0].eps).clamp(min=0)
    y = F.conv2d(y, block.second.weight, padding=1)
    y = F.group_norm(y, norms[1].num_groups, norms[1].weight, norms[1].bias, norms[1].eps)
    return (y + (F.conv2d(x, block.past.weight, stride=block.past.stride) if has_projection else x)).clamp(min=0)


def list_cells(features: Tensor) -> Tensor:
    """The cells (B, S, C) of a feature map (B, C, Y, X): first all of the first row, then those of the second."""
    return torch.stack([features[:, :, y, x] for y in range(features.shape[2]) for x in range(features.shape[3])], 1)
