"""Heads that share keys and values, windows by layer, and positions of Transformer-XL, each against what they mean."""

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.layers.attention import masks
from saccade.layers.attention.cache import DynamicCache, KeyValue
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.positions import Learned, Rotary, Sinusoidal, TransformerXL
from saccade.layers.packing import build_packing

D, H, K, E = 12, 6, 2, 2


@pytest.fixture
def pair() -> tuple[SelfAttention, SelfAttention]:
    """Grouped heads, and as many full ones with the keys and values of their group."""
    rotary = Rotary(E)
    grouped = SelfAttention(D, heads=(H, K), rotary=rotary).double().eval()
    full = SelfAttention(D, heads=H, rotary=rotary).double().eval()
    with torch.no_grad():
        nn.init.normal_(grouped.project.bias)
        for tensor, wide in ((grouped.project.weight, full.project.weight), (grouped.project.bias, full.project.bias)):
            queries, keys, values = tensor[:, :-2], tensor[:, -2], tensor[:, -1]
            wide[:, 0] = queries.flatten(0, 1)
            wide[:, 1], wide[:, 2] = (part.repeat_interleave(H // K, 0) for part in (keys, values))
    full.heads.out.load_state_dict(grouped.heads.out.state_dict())
    return grouped, full


def test_grouped_heads_are_full_ones_with_shared_keys(pair: tuple[SelfAttention, SelfAttention]) -> None:
    grouped, full = pair
    x = torch.randn(3, 7, D, dtype=torch.double)
    torch.testing.assert_close(grouped(x, mask=masks.causal()), full(x, mask=masks.causal()))
    row = build_packing([4, 2, 1])
    torch.testing.assert_close(
        grouped(x[:1], mask=masks.causal(), packing=row), full(x[:1], mask=masks.causal(), packing=row)
    )


@torch.no_grad()
def test_steps_keep_the_shared_keys_only(pair: tuple[SelfAttention, SelfAttention]) -> None:
    grouped, _ = pair
    x = torch.randn(3, 5, D, dtype=torch.double)
    whole = grouped(x, mask=masks.causal())
    cache = KeyValue.allocate(3, 5, K, E, like=x)
    for t in range(5):
        at = torch.tensor([[t]])
        step = grouped(x[:, t : t + 1], cache=DynamicCache(cache, at, t + 1))
        torch.testing.assert_close(step[:, 0], whole[:, t])


def test_the_term_of_transformer_xl_is_its_formula() -> None:
    heads, length = 3, 5
    term = TransformerXL(D, heads=heads, head_dim=4).double()
    nn.init.normal_(term.bias)
    query = torch.randn(2, heads, length, 4, dtype=torch.double)
    at = masks.make_positions(length, query.device)
    got, sinusoid = term(query, at, at), Sinusoidal(D)
    weight = term.project.weight.view(heads, 4, D)
    for i in range(length):
        for j in range(length):
            vector = sinusoid(torch.tensor([[j - i]]))[0, 0].double()
            expected = ((query[:, :, i] + term.bias[:, 0]) * (weight @ vector)).sum(-1)
            torch.testing.assert_close(got[:, :, i, j], expected)


def test_the_last_query_sees_the_same_distances_in_a_step() -> None:
    term = TransformerXL(D, heads=3, head_dim=4)
    query, at = torch.randn(1, 3, 6, 4), masks.make_positions(6, torch.device("cpu"))
    torch.testing.assert_close(term(query[:, :, -1:], at[:, -1:], at), term(query, at, at)[:, :, -1:])


def test_learned_positions_of_many_texts_in_one_row() -> None:
    table = Learned(D, max_length=4)
    row: Tensor = build_packing([4, 3, 4]).positions
    torch.testing.assert_close(table(row)[0, 4:7], table(masks.make_positions(3, row.device))[0])
    with pytest.raises(SaccadeError, match="a sequence of 5 tokens has more positions than were learned, 4"):
        table(build_packing([2, 5]).positions)
