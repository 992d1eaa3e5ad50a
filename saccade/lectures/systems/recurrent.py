"""Checks on recurrent networks: their recurrence, path lengths, vanishing gradients, both directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from saccade.layers.attention.scores import AttentionLayer
from saccade.layers.blocks.recurrent import CellName, RecurrentStack
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.scale.graphs import find_longest_path
from saccade.lectures.small import max_difference, sample_normal

CELLS: dict[CellName, Any] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


@check(
    1,
    "S3:13",
    "A recurrent encoder computes each state from the input and the state before it.",
    formula=r"h_t = f_W(x_t, h_{t-1})",
    code=(RecurrentStack,),
)
def step_by_step() -> CheckResult:
    compared, x = [], sample_normal(2, 7, 5)
    for name, cell in CELLS.items():
        stack, one = RecurrentStack(5, cell=name, layers=1).double(), cell(5, 5).double()
        one.load_state_dict({key.removesuffix("_l0"): value for key, value in stack.layers[0].state_dict().items()})
        difference = max_difference(stack(x, None)[0], _unroll_cell(one, x))
        compared.append(expect_near(f"{name}: difference from a loop over its cell", difference, 0, within=1e-12))
    return build_result(*compared)


def _unroll_cell(cell: Any, x: Tensor) -> Tensor:
    """Return all states, computed one step after the other."""
    state, states = None, []
    for t in range(x.shape[1]):
        state = cell(x[:, t], state)
        states.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(states, 1)


@check(
    7,
    "S1:17",
    "In a recurrent network, information between two words at distance N passes through O(N) steps.",
    formula=r"\mathrm{path}(x_i, h_j) = j - i",
    code=(nn.RNNCell,),
)
def distance() -> CheckResult:
    compared = [
        expect_equal(f"steps between words at distance {n - 1}", find_longest_path(_find_dependencies(n)), n - 1)
        for n in (10, 100, 1000)
    ]
    return build_result(*compared)


def _find_dependencies(n: int) -> Tensor:
    """Return edges[t, s]: whether state t is computed directly from state s, tested by changing h_(t-1)."""
    cell = nn.RNNCell(2, 3).double()
    x, h = sample_normal(1, 2), sample_normal(1, 3)
    uses_last = max_difference(cell(x, h), cell(x, h + 1)) > 0
    edges = torch.zeros(n, n, dtype=torch.bool)
    if uses_last:
        edges[torch.arange(1, n), torch.arange(n - 1)] = True
    return edges


LENGTH = 64


@check(
    8,
    "S1:24-29, S4:28-33",
    "The longer the path, the smaller the gradient: it vanishes along a recurrent network, but not through attention.",
    formula=r"\frac{\partial s}{\partial z} = \frac{\partial s}{\partial h} \frac{\partial h}{\partial z}",
    code=(nn.RNN, AttentionLayer),
)
def vanishing_gradient() -> CheckResult:
    rnn, layer = nn.RNN(32, 32, batch_first=True), AttentionLayer(32, key_dim=32, value_dim=32)
    x = torch.randn(64, LENGTH, 32)
    along, through = _measure_gradients(lambda y: rnn(y)[0][:, -1], x), _measure_gradients(lambda y: layer(y)[:, -1], x)
    falls = sum(along[t] < along[t + 1] for t in range(LENGTH - 1))
    away = [float(LENGTH - 1 - t) for t in range(LENGTH)]
    curves = {"recurrent network (tanh)": (away, along), "self-attention": (away, through)}
    caption = "Norm of the gradient of the last output with respect to a word, against the word's distance."
    far = slice(0, LENGTH // 2)  # the first half of the sequence
    return build_result(
        expect_at_most("recurrent: gradient 63 words back over that of the last word", along[0] / along[-1], 1e-6),
        expect_at_least("recurrent: steps back at which the gradient gets smaller, of 63", falls, 60),
        expect_at_least(
            "attention: smallest over largest gradient of the first 32 words",
            min(through[far]) / max(through[far]),
            0.2,
        ),
        drawing=Lines("distance", "gradient norm", curves, caption, log_y=True),
    )


def _measure_gradients(last: Any, x: Tensor) -> list[float]:
    """Return the gradient norm at each word, for a random direction of the last output."""
    x = x.clone().requires_grad_()
    y = last(x)
    (y * torch.randn_like(y)).sum().backward()
    assert x.grad is not None
    return [float(value) for value in x.grad.norm(dim=-1).mean(0)]


@check(
    9,
    "S1:33",
    "A bidirectional network reads in both directions and concatenates the two states; padding has no effect.",
    formula=r"h_t = (\mathrm{forward}_t; \mathrm{backward}_t)",
    code=(RecurrentStack,),
)
def both_directions() -> CheckResult:
    both = RecurrentStack(6, cell="gru", layers=1, directions="both").double()
    forward, backward = (nn.GRU(6, 3, batch_first=True).double() for _ in range(2))
    weights = both.layers[0].state_dict()
    forward.load_state_dict({key: value for key, value in weights.items() if "reverse" not in key})
    backward.load_state_dict({key.removesuffix("_reverse"): weights[key] for key in weights if "reverse" in key})
    x = sample_normal(1, 7, 6)
    by_hand = torch.cat((forward(x)[0], backward(x.flip(1))[0].flip(1)), -1)
    padded, real = torch.cat((x, sample_normal(1, 4, 6)), 1), torch.arange(11)[None] < 7
    return build_result(
        expect_near(
            "difference from one forward and one backward network",
            max_difference(both(x, None)[0], by_hand),
            0,
            within=1e-12,
        ),
        expect_near(
            "with four positions of padding: difference",
            max_difference(both(padded, real)[0][:, :7], by_hand),
            0,
            within=1e-12,
        ),
    )
