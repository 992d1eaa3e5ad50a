"""The network of each position, and the two normalisations. Rows are those of the lectures."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from saccade.layers.blocks.feedforward import Activation, FeedForward

D, FF = 5, 11


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


FORMULAS = {"relu": relu, "gelu": gelu, "silu": lambda x: x * sigmoid(x), "sigmoid": sigmoid}


def network(**settings: object) -> FeedForward:
    net = FeedForward(D, hidden_dim=FF, **settings)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return net


@pytest.mark.parametrize("activation", FORMULAS)
def test_two_layers_with_an_activation_between(activation: str) -> None:
    """Row 76: FFN(x) = max(0, x W1 + b1) W2 + b2, or another activation."""
    net, x = network(activation=activation), torch.randn(2, 3, D)
    hidden = FORMULAS[activation](x @ net.up.weight.T + net.up.bias)
    torch.testing.assert_close(net(x), hidden @ net.down.weight.T + net.down.bias)


@pytest.mark.parametrize("activation", FORMULAS)
def test_a_gate_multiplies_the_hidden_layer(activation: str) -> None:
    """Shazeer 2020, equation 6: (f(x W) * x V) W2; relu is ReGLU, gelu GEGLU, silu SwiGLU, sigmoid GLU."""
    net, x = network(activation=activation, gated=True, bias=False), torch.randn(2, 3, D)
    hidden = FORMULAS[activation](x @ net.up.weight.T) * (x @ net.gate.weight.T)
    torch.testing.assert_close(net(x), hidden @ net.down.weight.T)
    assert sum(p.numel() for p in net.parameters()) == 3 * D * FF


def test_positions_do_not_mix() -> None:
    """Row 79: the MLP works on each vector alone."""
    net, x = network(), torch.randn(2, 7, D)
    changed = x.clone()
    changed[:, 3] += 1
    assert torch.equal((net(changed) != net(x)).any(-1), (torch.arange(7) == 3).expand(2, 7))


def test_dropout_stands_between_the_two_layers() -> None:
    net, x = network(dropout=0.5), torch.randn(1, D)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    with torch.no_grad():
        net.train().down.weight.zero_()
    torch.testing.assert_close(net(x)[0], net.down.bias)  # the output itself is not dropped


def test_layer_norm_is_the_formula_of_the_lecture() -> None:
    """Rows 77 and 78: mean and biased variance over the features of each vector, eps inside the root, then affine."""
    norm, h = nn.LayerNorm(D, dtype=torch.float64), torch.randn(2, 3, D, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    mu = h.sum(-1, keepdim=True) / D
    variance = ((h - mu) ** 2).sum(-1, keepdim=True) / D  # 1/D, not 1/(D-1)
    z = (h - mu) / torch.sqrt(variance + 1e-5)
    torch.testing.assert_close(norm(h), norm.weight * z + norm.bias, atol=1e-12, rtol=0)
    assert norm.weight.shape == norm.bias.shape == (D,)


def test_layer_norm_of_a_constant_vector_is_beta() -> None:
    """Row 77: the notes have no epsilon; without it this would be 0/0."""
    norm = nn.LayerNorm(D)
    nn.init.normal_(norm.bias)
    assert torch.equal(norm(torch.full((1, D), 3.0))[0], norm.bias)


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    """Zhang and Sennrich 2019, equation 4: no mean is taken away, no beta is added."""
    norm, h = nn.RMSNorm(D, eps=1e-6), torch.randn(2, 3, D)
    nn.init.normal_(norm.weight)
    torch.testing.assert_close(norm(h), norm.weight * h / torch.sqrt((h**2).mean(-1, keepdim=True) + 1e-6))
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.cuda
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu-tanh"])
def test_network_on_the_gpu_has_the_gradients_of_the_network_on_the_cpu(activation: Activation) -> None:
    plain = FeedForward(16, hidden_dim=48, activation=activation)
    fast = copy.deepcopy(plain).cuda()
    x = torch.randn(3, 7, 16)
    plain(x).square().sum().backward()
    fast(x.cuda()).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-4)
