"""Attention inside chunks: against attention with a mask that says the same, at once and step by step."""

import math

import pytest
import torch
from torch import Tensor

from saccade.layers.attention.cache import KeyValue
from saccade.layers.attention.local import LocalAttention, chunked_attention
from saccade.layers.record import record

B, H, T, E, D = 2, 3, 19, 5, 12
EXACT = {"rtol": 0.0, "atol": 1e-10}


def visible_positions(length: int, chunk: int, *, causal: bool) -> Tensor:
    """Whether position i sees position j: its own chunk and the one before it."""
    i, j = torch.arange(length)[:, None], torch.arange(length)
    near = (j // chunk == i // chunk) | (j // chunk == i // chunk - 1)
    return near & (j <= i) if causal else near


def by_mask(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(E)
    return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 7, T, 40])
def test_a_position_sees_its_own_chunk_and_the_one_before(causal: bool, chunk: int) -> None:
    q, k, v = torch.randn(3, B, H, T, E, dtype=torch.float64)
    y, weights = chunked_attention(q, k, v, chunk=chunk, causal=causal)
    assert weights is None
    torch.testing.assert_close(y, by_mask(q, k, v, visible_positions(T, chunk, causal=causal)), **EXACT)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_never_seen(causal: bool) -> None:
    q, k, v = torch.randn(3, B, H, T, E, dtype=torch.float64)
    keep = torch.arange(T) < torch.tensor([[T], [T - 7]])
    y, _ = chunked_attention(q, k, v, chunk=4, causal=causal, keep=keep)
    real = keep[:, None, :, None].expand_as(y)
    allowed = visible_positions(T, 4, causal=causal) & keep[:, None, None, :] | torch.eye(T, dtype=torch.bool)
    torch.testing.assert_close(y[real], by_mask(q, k, v, allowed)[real], **EXACT)
    assert y.isfinite().all()


@pytest.mark.parametrize("chunk", [4, None])
def test_what_is_seen_is_what_was_mixed(chunk: int | None) -> None:
    layer = LocalAttention(D, heads=H, chunk=chunk, causal=True).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    with record(layer) as maps:
        y, kept = layer(x)
    weights, (_, _, value) = maps[""], layer.project(x)
    assert kept == () and weights.shape == (B, H, T, T)
    assert torch.equal(weights[0, 0] > 0, visible_positions(T, chunk or T, causal=True))
    torch.testing.assert_close(layer.out((weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)), y, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [4, None])
@pytest.mark.parametrize("first", [1, 6])
def test_steps_give_what_whole_texts_give(chunk: int | None, first: int) -> None:
    layer = LocalAttention(D, heads=H, chunk=chunk, causal=True).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    whole, _ = layer(x)
    cache, at = KeyValue.allocate(B, T, H, D // H, like=x), 0
    for n in [first, *[2] * 4, *[1] * (T - first - 8)]:
        places = torch.arange(at, at + n)[None]
        y = layer.step(x[:, at : at + n], cache, positions=places, length=at + n)
        torch.testing.assert_close(y, whole[:, at : at + n], **EXACT)
        at += n
    assert at == T


@torch.no_grad()
def test_rows_of_unequal_length_go_on_each_where_it_is() -> None:
    layer = LocalAttention(D, heads=H, chunk=4, causal=True).double()
    x = torch.randn(2, T, D, dtype=torch.float64)
    whole, cache = layer(x)[0], KeyValue.allocate(2, T, H, D // H, like=x)
    layer.step(x[:, :9], cache, positions=torch.arange(9)[None], length=9)
    places = torch.tensor([[9], [5]])  # the second row goes back to its sixth position
    y = layer.step(torch.stack((x[0, 9:10], x[1, 5:6])), cache, positions=places, length=10)
    torch.testing.assert_close(y[:, 0], torch.stack((whole[0, 9], whole[1, 5])), **EXACT)
