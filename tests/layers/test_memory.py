"""A stack step by step: the state between two steps. Rows are those of the lectures."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from saccade.kernels.cpu import step_attention
from saccade.layers.attention.cache import AttentionState
from saccade.layers.attention.multihead import CrossAttention, SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.layers.memory import Memory

B, T, S, H, D, FF = 3, 5, 7, 2, 12, 11


def stack(*, order: str = "post", cross: bool = False, **settings: object) -> TransformerStack:
    blocks = [
        Block(
            SelfAttention(D, heads=H),
            FeedForward(D, hidden_dim=FF),
            residuals=[Residual(nn.LayerNorm(D), order=order, dropout=0.0) for _ in range(3 if cross else 2)],
            cross=CrossAttention(D, heads=H, memory_dim=D) if cross else None,
        )
        for _ in range(2)
    ]
    return TransformerStack(blocks, dim=D, norm=nn.LayerNorm(D) if order == "pre" else None, **settings).double()


def inputs(length: int = T) -> Tensor:
    return torch.randn(B, length, D, dtype=torch.float64)


def read() -> Memory:
    return Memory(inputs(S), torch.arange(S) < torch.tensor([[S], [4], [1]]))


def advance(one: TransformerStack, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
    y, _, state, _ = one(x, None, None, state)
    return y, state


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("window", [None, 0, 2])
@pytest.mark.parametrize("sizes", [[1] * 7, [3, 1, 1, 2], [7], [4, 3]])
def test_steps_equal_the_whole_text(order: str, window: int | None, sizes: list[int]) -> None:
    one, x, memory = stack(order=order, cross=True, causal=True, window=window), inputs(7), read()
    expected = one(x, None, memory)[0]
    state, parts = one.start(memory, rows=B, capacity=9), []
    for part in x.split(sizes, 1):
        y, state = advance(one, part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    assert state.lengths.tolist() == [7] * B


@pytest.mark.parametrize("window", [None, 1])
def test_rows_may_have_different_lengths(window: int | None) -> None:
    """Rows that have seen 1, 4 and 2 positions go on together, each from where it stands, and may be reordered."""
    one, x, memory, lengths = stack(cross=True, causal=True, window=window), inputs(9), read(), [1, 4, 2]
    expected = one(x, None, memory)[0]
    state = one.start(memory, rows=B, capacity=9)
    for i in range(4):
        _, state = advance(one, x[:, [i]], state)
    state = dataclasses.replace(state, lengths=torch.tensor(lengths), max_length=4, is_uniform=False)
    rows = torch.tensor([2, 0, 1, 1])
    state = state.reorder(rows)
    for n in (1, 2):
        at = state.lengths[:, None] + torch.arange(n)
        y, state = advance(one, x[rows[:, None], at], state)
        torch.testing.assert_close(y, expected[rows[:, None], at])
    assert state.lengths.tolist() == [5, 4, 7, 7]


def test_a_short_row_that_is_left_alone_goes_on_at_its_own_position() -> None:
    """Cells beyond its length hold what longer rows wrote there, which must be overwritten and not attended to."""
    one, x = stack(causal=True), inputs(4)
    state = one.start(None, rows=B, capacity=9)
    _, state = advance(one, torch.cat((x[:, :1], torch.randn_like(x[:, :3])), 1), state)
    state = dataclasses.replace(state, lengths=torch.tensor([1, 4, 4]), is_uniform=False).reorder(torch.tensor([0]))
    for i in (1, 2):
        y, state = advance(one, x[:1, [i]], state)
        torch.testing.assert_close(y, one(x[:1, : i + 1], None)[0][:, -1:])


def test_what_short_rows_have_not_written_is_not_read_even_after_reordering() -> None:
    """Room beyond a row's length is finite: a weight of zero times NaN would be NaN."""
    one, x = stack(causal=True), inputs(2)
    state = one.start(None, rows=B, capacity=50)
    _, state = advance(one, x, state)
    state = dataclasses.replace(state, lengths=torch.tensor([2, 1, 0]), is_uniform=False).reorder(
        torch.tensor([2, 1, 0])
    )
    assert all(layer.keys.isfinite().all() and layer.values.isfinite().all() for layer in state.self_caches)
    assert advance(one, x[:, :1], state)[0].isfinite().all()


@pytest.mark.parametrize("rows", [[1], [2, 2, 0, 1, 0], [2, 1, 0]])
def test_reordered_rows_go_on_as_themselves(rows: list[int]) -> None:
    """Fewer rows, more rows, another order; memory goes with them."""
    one, x, memory = stack(cross=True, causal=True), inputs(4), read()
    expected = one(x, None, memory)[0]
    state = one.start(memory, rows=B, capacity=4)
    _, state = advance(one, x[:, :3], state)
    state = state.reorder(torch.tensor(rows))
    y, state = advance(one, x[rows, 3:], state)
    torch.testing.assert_close(y[:, 0], expected[rows, 3])
    assert state.memory_mask.shape == (len(rows), S)


def test_a_state_is_a_value() -> None:
    """Reordered states share nothing with the old one; nothing is left on the module."""
    one, x, memory = stack(cross=True, causal=True), inputs(4), read()
    before = {name: id(value) for name, value in vars(one).items()}
    state = one.start(memory, rows=B, capacity=4)
    _, state = advance(one, x[:, :2], state)
    left, right = state.reorder(torch.arange(B)), state.reorder(torch.arange(B))
    y, _ = advance(one, x[:, 2:3], left)
    advance(one, -x[:, 2:3], right)
    torch.testing.assert_close(y, one(x[:, :3], None, memory)[0][:, 2:])
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.max_length = 3
    assert {name: id(value) for name, value in vars(one).items()} == before


def test_no_more_positions_than_there_is_room_for() -> None:
    one, x = stack(causal=True), inputs(4)
    _, state = advance(one, x[:, :2], one.start(None, rows=B, capacity=3))
    with pytest.raises(ValueError, match="the state has capacity 3, got 4 positions"):
        advance(one, x[:, 2:], state)


def test_keys_and_values_of_memory_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 68: once for each layer and source, however many words are written."""
    one, x, memory, calls = stack(cross=True, causal=True), inputs(7), read(), []
    plain = CrossAttention.project_memory

    def count_call(self: CrossAttention, states: Tensor) -> object:
        calls.append(self)
        return plain(self, states)

    monkeypatch.setattr(CrossAttention, "project_memory", count_call)
    state = one.start(memory, rows=B, capacity=7)
    for i in range(7):
        _, state = advance(one, x[:, [i]], state.reorder(torch.arange(B)))
    assert calls == [part.cross for part in one.blocks]


@pytest.mark.parametrize("fused", [True, False])
def test_memory_lies_by_head_or_by_feature_and_stays_so_when_rows_leave(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_attention, "can_use_kernel", lambda *parts: fused)
    writer = stack(cross=True, causal=True)
    memory = read()
    with torch.inference_mode():
        state = writer.start(memory, rows=B, capacity=T)
        fewer = state.reorder(torch.tensor([2, 0]))
        for block, all_rows, some in zip(writer.blocks, state.cross_caches, fewer.cross_caches, strict=True):
            plain = block.cross.project_memory(memory.states)
            torch.testing.assert_close(all_rows.keys, plain.keys, rtol=0, atol=0)
            torch.testing.assert_close(some.values, plain.values[[2, 0]], rtol=0, atol=0)
            for part in (*vars(all_rows).values(), *vars(some).values()):
                assert part.permute(0, 2, 1, 3).is_contiguous() == fused
                assert part.permute(0, 2, 3, 1).is_contiguous() == (not fused)


def test_steps_under_autocast_are_near_to_float32() -> None:
    one, x, memory = stack(cross=True, causal=True).float(), inputs().float(), read()
    memory = dataclasses.replace(memory, states=memory.states.float())
    expected = one(x, None, memory)[0]
    with torch.autocast("cpu", torch.bfloat16):
        state, parts = one.start(memory, rows=B, capacity=T), []
        for i in range(T):
            y, state = advance(one, x[:, [i]], state.reorder(torch.arange(B)))
            parts.append(y)
        without = advance(
            one.eval(), x, dataclasses.replace(one.start(None, rows=B, capacity=T), cross_caches=state.cross_caches)
        )
    assert state.self_caches[0].keys.dtype == torch.bfloat16
    assert without[0].isfinite().all()
    torch.testing.assert_close(torch.cat(parts, 1).float(), expected, atol=0.1, rtol=0.1)


def test_memory_is_repeated_row_by_row() -> None:
    """All that a reader gives; what it does not give stays absent."""
    states, mask = torch.randn(2, 3, 5), torch.tensor([[True, True, False], [True, True, True]])
    final = ((torch.randn(2, 5), torch.randn(2, 5)),)
    whole = Memory(states, mask, tokens=torch.arange(6).view(2, 3), values=2 * states, final=final).repeat_rows(3)
    for row in range(6):
        assert torch.equal(whole.states[row], states[row // 3]) and torch.equal(whole.mask[row], mask[row // 3])
        assert whole.tokens is not None and whole.tokens[row, 0] == 3 * (row // 3)
        assert whole.values is not None and torch.equal(whole.values[row], 2 * states[row // 3])
        assert whole.final is not None and torch.equal(whole.final[0][1][row], final[0][1][row // 3])
    bare = Memory(states, mask).repeat_rows(2)
    assert bare.tokens is bare.values is bare.final is None
