"""Networks written out from the formulas of their papers, in float64 and for one sequence at a time.

Checks compare the models of recipes with them. Only parameters come from saccade's modules, whose type is Any since
they are read by name; none of their code runs. T and S are lengths, D is the width, H heads of width E.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.lectures.claims import Comparison, expect_near


@torch.no_grad()
def perturb_parameters(module: nn.Module, *, scale: float = 0.3) -> None:
    """Add noise to all parameters in place: a bias of 0 or a gain of 1 would hide that it is not used."""
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=scale)


def compare_gradients(what: str, net: nn.Module, ours: Tensor, theirs: Tensor, *, within: float = 1e-7) -> Comparison:
    """Compare the gradients of all parameters for a random sum of two outputs; a parameter without one counts as 0."""
    direction, parameters = torch.randn_like(theirs), list(net.parameters())
    grads = [
        torch.autograd.grad((output * direction).sum(), parameters, allow_unused=True) for output in (ours, theirs)
    ]
    pairs = zip(parameters, *grads, strict=True)
    differences = [(torch.zeros_like(p) if a is None else a) - (0 if b is None else b) for p, a, b in pairs]
    worst = max(float(difference.abs().max()) for difference in differences)
    return expect_near(f"{what}: difference of the gradients from the formulas", worst, 0, within=within)


# ---- linear maps, norms, activations


def apply_linear(layer: Any, x: Tensor) -> Tensor:
    """W x + b for each row of x (T, D)."""
    y = torch.einsum("...i,oi->...o", x, layer.weight)
    return y if layer.bias is None else y + layer.bias


def apply_layer_norm(norm: Any, x: Tensor) -> Tensor:
    """gamma (x - mu) / sqrt(sigma^2 + eps) + beta."""
    centred = x - x.mean(-1, keepdim=True)
    y: Tensor = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return y + norm.bias


def apply_rms_norm(norm: Any, x: Tensor) -> Tensor:
    """gamma x / sqrt(mean of x^2 + eps): no mean is subtracted and nothing is added."""
    y: Tensor = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return y


def relu(x: Tensor) -> Tensor:
    return x * (x > 0)


def gelu(x: Tensor) -> Tensor:
    """x Phi(x)."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of GPT-2."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


# ---- attention


def attend(scores: Tensor, values: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The sum of values (..., S, E), weighted by exp(e) / sum exp(e) over the keys that are allowed."""
    weights = compute_weights(scores, allowed)
    return torch.einsum("...qk,...ke->...qe", weights, values)


def compute_weights(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    exponents = (scores - scores.amax(-1, keepdim=True)).exp()
    exponents = exponents if allowed is None else exponents * allowed
    return exponents / exponents.sum(-1, keepdim=True)


def project_heads(projection: Any, x: Tensor) -> list[Tensor]:
    """The parts of each head (H, T, E), such as query, key and value, of a weight (H, parts, E, D)."""
    y = torch.einsum("td,hped->phte", x, projection.weight)
    return list(y if projection.bias is None else y + projection.bias.transpose(0, 1)[:, :, None])


def merge_heads(out: Any, y: Tensor) -> Tensor:
    """Concat(head_1, ..., head_H) W^O."""
    return apply_linear(out, torch.cat(tuple(y), -1))


class Style(NamedTuple):
    """The form of a Transformer's blocks."""

    norm: Callable[[Any, Tensor], Tensor] = apply_layer_norm
    activation: Callable[[Tensor], Tensor] = relu
    pre_norm: bool = False
    scaled: bool = True  # scores are divided by sqrt(E)
    gated: bool = False  # the feed-forward network multiplies two maps


def apply_self_attention(layer: Any, x: Tensor, style: Style, allowed: Tensor | None, bias: Tensor | None) -> Tensor:
    query, key, value = project_heads(layer.project, x)
    scores = compute_scores(query, key, style)
    return merge_heads(layer.heads.out, attend(scores if bias is None else scores + bias, value, allowed))


def apply_cross_attention(layer: Any, x: Tensor, states: Tensor, style: Style) -> Tensor:
    (query,), (key, value) = project_heads(layer.query, x), project_heads(layer.memory, states)
    return merge_heads(layer.heads.out, attend(compute_scores(query, key, style), value))


def compute_scores(query: Tensor, key: Tensor, style: Style) -> Tensor:
    scores = torch.einsum("hqe,hke->hqk", query, key)
    return scores / math.sqrt(query.shape[-1]) if style.scaled else scores


def apply_feedforward(network: Any, x: Tensor, style: Style) -> Tensor:
    hidden = style.activation(apply_linear(network.up, x))
    return apply_linear(network.down, hidden * apply_linear(network.gate, x) if style.gated else hidden)


# ---- Transformers


def run_transformer(
    blocks: Sequence[Any],
    x: Tensor,
    style: Style,
    *,
    final: Any = None,
    allowed: Sequence[Tensor | None] | None = None,
    bias: Tensor | None = None,
    states: Tensor | None = None,
) -> Tensor:
    """The output of Transformer blocks for one sequence x (T, D), with the final norm of pre-norm blocks.

    `allowed` has the mask (T, T) of each block, `bias` is added to the scores of self-attention, and `states` are what
    cross-attention reads.
    """
    for number, block in enumerate(blocks):
        mask = None if allowed is None else allowed[number]
        sublayers: list[Callable[[Tensor], Tensor]] = [
            partial(apply_self_attention, block.self, style=style, allowed=mask, bias=bias),
            partial(apply_feedforward, block.feedforward, style=style),
        ]
        if states is not None:
            sublayers.insert(1, partial(apply_cross_attention, block.cross, states=states, style=style))
        for sublayer, residual in zip(sublayers, block.residuals, strict=True):
            inner = sublayer(style.norm(residual.norm, x)) if style.pre_norm else sublayer(x)
            x = x + inner if style.pre_norm else style.norm(residual.norm, x + inner)
    return style.norm(final, x) if style.pre_norm else x


def build_causal_mask(length: int, window: int | None = None) -> Tensor:
    """Position i may attend to j <= i, and with a window only to j >= i - window."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) if window is None else (distance >= 0) & (distance <= window)


def encode_positions(length: int, dim: int, *, first: int = 0) -> Tensor:
    """sin and cos of p / 10000^(2i/D), interleaved, for positions from `first` on; float32 as in the models."""
    pairs = torch.arange(dim // 2, dtype=torch.float64)
    angles = torch.arange(first, first + length, dtype=torch.float64)[:, None] / 10000 ** (2 * pairs / dim)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).float().double()


# ---- recurrent networks


Hidden = tuple[Tensor, Tensor]  # h and, in an LSTM, c


def step_lstm(layer: Any, x: Tensor, before: Hidden, suffix: str = "") -> Hidden:
    """Gates i, f, g, o: c_t = f c_(t-1) + i g, h_t = o tanh(c_t)."""
    i, f, g, o = _sum_gates(layer, x, before[0], suffix).chunk(4)
    c = torch.sigmoid(f) * before[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def step_gru(layer: Any, x: Tensor, before: Hidden, suffix: str = "") -> Hidden:
    """h_t = (1 - z) n + z h_(t-1), n = tanh(W x_t + r U h_(t-1))."""
    weights = [getattr(layer, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (
        (weight @ part + bias).chunk(3)
        for part, weight, bias in ((x, weights[0], weights[2]), (before[0], weights[1], weights[3]))
    )
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + r * n_h) + z * before[0], before[1]


def _sum_gates(layer: Any, x: Tensor, h: Tensor, suffix: str) -> Tensor:
    inner, recurrent = getattr(layer, f"weight_ih_l0{suffix}"), getattr(layer, f"weight_hh_l0{suffix}")
    total: Tensor = inner @ x + recurrent @ h
    return total + getattr(layer, f"bias_ih_l0{suffix}") + getattr(layer, f"bias_hh_l0{suffix}")


StepCell = Callable[..., Hidden]


def run_recurrent_layer(
    step: StepCell, layer: Any, x: Tensor, *, backward: bool = False, suffix: str = ""
) -> tuple[Tensor, Tensor]:
    """The states of a layer for x (T, D) in the order of the tokens, from zero, and its last state."""
    size = getattr(layer, f"weight_hh_l0{suffix}").shape[1]
    hidden, found = (x.new_zeros(size), x.new_zeros(size)), []
    for token in x.flip(0) if backward else x:
        hidden = step(layer, token, hidden, suffix)
        found.append(hidden[0])
    states = torch.stack(found)
    return states.flip(0) if backward else states, found[-1]
