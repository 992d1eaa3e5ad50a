"""LoRA: nothing changes at initialization, and merged weights give the same output."""

import pytest
import torch
from torch import nn

from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.lowrank import attach_lora, merge_lora
from saccade.model.run import copy_weights, named_weights


def perturb(module):
    """With additions that are no longer zero."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(".up"):
                parameter.copy_(torch.randn_like(parameter))


def test_at_first_nothing_is_changed():
    linear, x = nn.Linear(5, 7), torch.randn(3, 5)
    before = linear(x)
    attach_lora(linear, rank=2, scale=3.0)
    assert torch.equal(linear(x), before)


def test_the_sum_is_the_formula():
    linear, x = nn.Linear(5, 7, bias=False).double(), torch.randn(3, 5, dtype=torch.float64)
    weight = linear.weight.detach().clone()
    attach_lora(linear, rank=2, scale=3.0)
    perturb(linear)
    low = linear.parametrizations.weight[0]
    torch.testing.assert_close(linear(x), x @ weight.T + 3.0 * x @ low.down.T @ low.up.T)


def test_only_the_addition_has_gradients():
    linear = nn.Linear(5, 7, bias=False)
    attach_lora(linear, rank=2, scale=3.0)
    linear(torch.randn(3, 5)).sum().backward()
    trained = {name for name, parameter in linear.named_parameters() if parameter.grad is not None}
    assert trained == {"parametrizations.weight.0.up", "parametrizations.weight.0.down"}
    assert sum(parameter.numel() for parameter in linear.parameters() if parameter.requires_grad) == 2 * (5 + 7)


@pytest.mark.parametrize("form", ["paper", "full", "split"])
def test_joined_weights_of_all_heads_give_the_same(form):
    layer, plain = (SelfAttention(6, heads=3, form=form).double().eval() for _ in range(2))
    attach_lora(layer.project, rank=2, scale=0.5)
    perturb(layer)
    weights = merge_lora(named_weights(layer), scale=0.5)
    assert weights.keys() == named_weights(plain).keys()
    copy_weights(plain, weights)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(plain(x), layer(x), atol=1e-12, rtol=0)


def test_weights_without_additions_stay_as_they_are():
    weights = named_weights(nn.Linear(2, 3))
    assert merge_lora(weights, scale=1.0) == weights
