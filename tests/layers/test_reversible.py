"""Reversible layers give the gradients of plain ones and store almost no activations."""

import pytest
import torch
from torch import Tensor, nn

from saccade.layers.attention.lsh import Hashing, LshAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.reversible import ReversibleBlock, ReversibleStack, run_reversible
from saccade.layers.record import record

B, T, D, H = 2, 18, 12, 3
EXACT = {"rtol": 0.0, "atol": 1e-10}


def blocks(
    layers: int = 3, *, dropout: float = 0.0, chunk: int | None = None, seed: int | None = None
) -> list[ReversibleBlock]:
    made = [
        ReversibleBlock(
            LshAttention(D, heads=H, hashing=Hashing(rounds=2, chunk=4, seed=seed), causal=True, dropout=dropout),
            FeedForward(D, hidden_dim=17, activation="gelu", dropout=dropout),
            norms=[nn.LayerNorm(D), nn.LayerNorm(D)],
            dropout=dropout,
            chunk=chunk,
        ).double()
        for _ in range(layers)
    ]
    for block in made:
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.4)
    return made


def halves() -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(2, B, T, D, dtype=torch.float64).requires_grad_().unbind())


def gradients(run, x1: Tensor, x2: Tensor, parameters: list[Tensor]) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    torch.manual_seed(3)
    y1, y2 = run(x1, x2)
    loss = (y1 * torch.linspace(-1, 1, D)).sum() + y2.square().sum()
    return (y1, y2), list(torch.autograd.grad(loss, [x1, x2, *parameters]))


def plainly(layers: list[ReversibleBlock], mask: Tensor | None):
    def run(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        for block in layers:
            x1, x2 = block(x1, x2, mask)
        return x1, x2

    return run


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_are_those_of_the_plain_layers(dropout: float, chunk: int | None, padded: bool) -> None:
    """Rotations and what is dropped are drawn anew at each call, and drawn the same in the backward pass."""
    layers, (x1, x2) = blocks(dropout=dropout, chunk=chunk), halves()
    mask = torch.arange(T) < torch.tensor([[T], [T - 5]]) if padded else None
    parameters = [p for block in layers for p in block.parameters()]
    expected, plain = gradients(plainly(layers, mask), x1, x2, parameters)
    found, mine = gradients(lambda a, b: run_reversible(layers, a, b, mask), x1, x2, parameters)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_layers_that_are_one_and_the_same_share_their_gradient() -> None:
    (block,), (x1, x2) = blocks(1, seed=1), halves()
    parameters = list(block.parameters())
    _, plain = gradients(plainly([block] * 3, None), x1, x2, parameters)
    _, mine = gradients(lambda a, b: run_reversible([block] * 3, a, b), x1, x2, parameters)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_frozen_parameters_get_no_gradient() -> None:
    layers, (x1, x2) = blocks(2), halves()
    layers[0].requires_grad_(False)
    sum(run_reversible(layers, x1, x2)).sum().backward()
    assert all(p.grad is None for p in layers[0].parameters())
    assert all(p.grad is not None for p in layers[1].parameters())


def test_backward_leaves_the_random_numbers_alone() -> None:
    layers, (x1, x2) = blocks(dropout=0.3), halves()
    y = sum(run_reversible(layers, x1, x2)).sum()
    state = torch.get_rng_state()
    y.backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_only_the_last_outputs_and_the_buckets_are_kept() -> None:
    kept: dict[int, list[tuple[torch.dtype, tuple[int, ...]]]] = {}
    for count in (1, 4):
        layers, (x1, x2) = blocks(count), halves()
        kept[count] = []

        def pack(x: Tensor, into=kept[count]) -> Tensor:
            into.append((x.dtype, tuple(x.shape)))
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            run_reversible(layers, x1, x2)
    outputs, buckets = (torch.float64, (B, T, D)), (torch.int32, (B, H, 2, T))
    assert kept == {count: [outputs] * 2 + [buckets] * count for count in (1, 4)}


def test_stack_is_the_same_with_and_without_gradients() -> None:
    stack = ReversibleStack(blocks(seed=2, chunk=7), dim=D, norm=nn.LayerNorm(2 * D)).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    y, _, state, aux = stack(x, None)
    assert y.shape == (B, T, stack.dim) and state is None and aux == {}
    with torch.no_grad():
        torch.testing.assert_close(stack(x, None)[0], y, rtol=0.0, atol=0.0)
    with record(stack) as maps:
        torch.testing.assert_close(stack(x, None)[0], y, rtol=0.0, atol=0.0)
    assert [weights.shape for weights in maps.values()] == [(B, H, T, T)] * 3


def test_half_precision_is_computed_again_as_it_was() -> None:
    """Though the backward pass begins where autocast has ended."""
    (block,), (x1, x2) = blocks(1), halves()
    block.float()
    inner: list[Tensor] = []
    block.feedforward.up.register_forward_hook(lambda module, given, made: inner.append(made.detach()))
    with torch.autocast("cpu", torch.bfloat16):
        y = sum(run_reversible([block], x1.float(), x2.float())).sum()
    y.backward()
    first, again = inner
    assert first.dtype == again.dtype == torch.bfloat16
    assert torch.equal(first, again)  # y1 is given, not recomputed


@pytest.mark.cuda
def test_gradients_with_dropout_on_the_gpu() -> None:
    layers = [block.cuda() for block in blocks(dropout=0.3, chunk=5)]
    x1, x2 = (x.detach().cuda().requires_grad_() for x in halves())
    parameters = [p for block in layers for p in block.parameters()]
    weights = torch.linspace(-1, 1, D, device="cuda", dtype=torch.float64)

    def run(way) -> list[Tensor]:
        torch.manual_seed(3)
        y1, y2 = way(x1, x2)
        return list(torch.autograd.grad((y1 * weights).sum() + y2.square().sum(), [x1, x2, *parameters]))

    for one, other in zip(run(lambda a, b: run_reversible(layers, a, b)), run(plainly(layers, None)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
