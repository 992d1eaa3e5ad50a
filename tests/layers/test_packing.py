"""Packed rows: the same numbers as padded ones, without the padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.attention.positions import Rotary, Shaw
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, build_packing, round_up_length

D, H = 16, 2
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def test_bounds_are_few() -> None:
    assert [round_up_length(n) for n in (1, 16, 17, 40, 128, 129, 300)] == [16, 16, 32, 64, 128, 256, 384]


@given(LENGTHS, st.integers(0, 50), st.integers(0, 5))
def test_every_token_has_its_text_and_its_place(lengths: list[int], tokens: int, texts: int) -> None:
    longest = round_up_length(max(lengths))
    filling = -(-tokens // longest)
    row = build_packing(lengths, tokens=sum(lengths) + tokens, sequences=len(lengths) + filling + texts)

    sizes = row.offsets.diff().tolist()
    assert sizes[: len(lengths)] == lengths
    assert sum(sizes) == row.sequence_ids.shape[1] == sum(lengths) + tokens
    assert max(sizes) <= row.max_length == longest
    assert len(sizes) == len(lengths) + filling + texts
    expected = [(i, place) for i, size in enumerate(sizes) for place in range(size)]
    assert list(zip(row.sequence_ids[0].tolist(), row.positions[0].tolist(), strict=True)) == expected
    assert row.keep[0].tolist() == [True] * sum(lengths) + [False] * tokens


@given(LENGTHS)
def test_a_row_goes_to_the_rectangle_and_back(lengths: list[int]) -> None:
    row = build_packing(lengths, tokens=sum(lengths) + 3)
    x = torch.arange(2.0 * row.sequence_ids.shape[1]).reshape(1, -1, 1, 2)

    rectangle = row.unpack(x)

    assert rectangle.shape == (len(row.offsets) - 1, row.max_length, 1, 2)
    assert rectangle[row.get_padded_mask()].equal(x[0])
    assert row.pack(rectangle.flatten(2)).equal(x.flatten(2))


def test_a_doubled_row_has_every_text_twice() -> None:
    once = build_packing([3, 5], tokens=10, sequences=4)

    twice = once.repeat_mask()

    assert twice.offsets.tolist() == [0, 3, 8, 10, 10, 13, 18, 20, 20]
    assert twice.sequence_ids[0].tolist() == [*once.sequence_ids[0].tolist(), *(once.sequence_ids[0] + 4).tolist()]
    assert twice.keep[0].tolist() == once.keep[0].tolist() * 2


def stack(kind: str, *, causal: bool, cross: bool) -> TransformerStack:
    def block() -> Block:
        rotary = Rotary(D // H) if kind == "rotary" else None
        term = Shaw(D // H, max_distance=4) if kind == "shaw" else None
        return Block(
            SelfAttention(D, heads=H, rotary=rotary, term=term),
            FeedForward(D, hidden_dim=24),
            residuals=[Residual(nn.LayerNorm(D), order="pre", dropout=0.0) for _ in range(3 if cross else 2)],
            cross=CrossAttention(D, heads=H, memory_dim=D) if cross else None,
        )

    window = 2 if kind == "window" else None
    return TransformerStack([block(), block()], dim=D, causal=causal, window=window).double()


def pad_rows(row: Tensor, packed: Packing) -> tuple[Tensor, Tensor]:
    """The rectangle of the real texts, with zeros behind them, and its mask."""
    real = int(packed.sequence_ids[packed.keep].max()) + 1
    mask = packed.get_padded_mask()[:real]
    return packed.unpack(row[..., None])[:real, ..., 0] * mask[..., None], mask


@pytest.mark.parametrize("kind", ["plain", "window", "rotary", "shaw"])
def test_packed_rows_give_what_padded_ones_give(kind: str) -> None:
    """Self-attention, causal self-attention and attention to memory, forward and gradients."""
    torch.manual_seed(1)
    source, target = (
        build_packing([5, 1, 20], tokens=40, sequences=6),
        build_packing([7, 3, 11], tokens=32, sequences=6),
    )
    reader, writer = stack(kind, causal=False, cross=False), stack(kind, causal=True, cross=True)
    x, y = (torch.randn(1, part.sequence_ids.shape[1], D, dtype=torch.float64) for part in (source, target))
    mix = torch.randn(D, dtype=torch.float64)
    parameters = [*reader.parameters(), *writer.parameters()]

    states, *_ = reader(x, source)
    packed, *_ = writer(y, target, Memory(states, source))
    loss = (packed[0][target.keep[0]] @ mix).square().sum()
    ours = torch.autograd.grad(loss, parameters)

    (x_rows, x_mask), (y_rows, y_mask) = pad_rows(x, source), pad_rows(y, target)
    states, *_ = reader(x_rows, x_mask)
    rows, *_ = writer(y_rows, y_mask, Memory(states, x_mask))
    expected = torch.autograd.grad((rows[y_mask] @ mix).square().sum(), parameters)

    torch.testing.assert_close(packed[0][target.keep[0]], rows[y_mask])
    torch.testing.assert_close(ours, expected)
