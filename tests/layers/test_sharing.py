"""Beams on a CPU: shared memory of consecutive rows, and caches copied only where they differ."""

import pytest
import torch
from torch import Tensor

from saccade.config.load import validate
from saccade.layers.attention.cache import AttentionState
from saccade.layers.blocks.transformer import TransformerStack
from saccade.layers.memory import Memory
from saccade.model.build.model import build

B, S, D, CAPACITY = 3, 5, 12, 11


@pytest.fixture
def stack() -> TransformerStack:
    settings = {"layers": 2, "dim": D, "heads": 3, "ff": 17}
    recipe = validate({"reader": {"stack": settings}, "writer": {"stack": settings}}, origin="test")
    return build(recipe, source_size=7, target_size=7).eval().writer.stack


def read(padded: bool = True) -> Memory:
    return Memory(torch.randn(B, S, D), torch.arange(S) < torch.tensor([[S], [3 if padded else S], [S]]))


def repeat_state(memory: Memory, rows: list[int]) -> Memory:
    return Memory(memory.states[rows], memory.mask[rows])


def advance(stack: TransformerStack, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
    y, _, state, _ = stack(x, None, None, state)
    return y, state


@pytest.mark.parametrize("padded", [True, False])
def test_rows_that_share_memory_see_what_their_own_would_show(stack: TransformerStack, padded: bool) -> None:
    memory, each = read(padded), [0, 0, 1, 1, 2, 2]
    with torch.inference_mode():
        shared = stack.start(memory, rows=B, capacity=CAPACITY).reorder(torch.tensor(each))
        alone = stack.start(repeat_state(memory, each), rows=6, capacity=CAPACITY)
        assert shared.cross_caches[0].keys.shape[0] == B
        for _ in range(3):
            x = torch.randn(6, 1, D)
            (got, shared), (expected, alone) = advance(stack, x, shared), advance(stack, x, alone)
            torch.testing.assert_close(got, expected)


def test_sentences_leave_with_their_memory(stack: TransformerStack) -> None:
    memory = read()
    with torch.inference_mode():
        state = stack.start(memory, rows=B, capacity=CAPACITY).reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
        left = state.reorder(torch.tensor([3, 2, 5, 5]))
        assert left.cross_caches[0].keys.shape[0] == 2
        assert torch.equal(left.cross_caches[0].keys, state.cross_caches[0].keys[1:])
        assert torch.equal(left.memory_mask, memory.mask[1:])
        uneven = state.reorder(torch.tensor([0, 1, 4]))  # two rows of one sentence and one of another
        assert torch.equal(uneven.cross_caches[0].values, state.cross_caches[0].values[[0, 0, 2]])


def test_memory_is_not_copied_while_all_sentences_stay(stack: TransformerStack) -> None:
    with torch.inference_mode():
        state = stack.start(read(), rows=B, capacity=CAPACITY).reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
        assert state.reorder(torch.tensor([1, 1, 3, 2, 4, 4])).cross_caches is state.cross_caches


@pytest.mark.parametrize("seed", range(5))
def test_what_rows_share_need_not_be_copied(stack: TransformerStack, seed: int) -> None:
    """Rows go on from each other at random; each must then see the past of the row that it went on from."""
    torch.manual_seed(seed)
    memory = read()
    with torch.inference_mode():
        state = stack.start(memory, rows=B, capacity=CAPACITY)
        past = torch.empty(B, 0, D)
        for step in range(CAPACITY - 1):
            x = torch.randn(past.shape[0], 1, D)
            past = torch.cat((past, x), 1)
            got, state = advance(stack, x, state)
            expected = stack(past, None, repeat_state(memory, [r * B // len(past) for r in range(len(past))]))[0][
                :, -1:
            ]
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            parents = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])  # each row gets two neighbours
            if step:
                change = torch.randint(0, 3, (9,)) * (torch.rand(9) < 0.4)
                parents = torch.arange(9) // 3 * 3 + (torch.arange(9) + change) % 3
            past, state = past[parents], state.reorder(parents)


def test_a_few_different_cells_are_moved_in_place(stack: TransformerStack) -> None:
    with torch.inference_mode():
        state = stack.start(read(), rows=B, capacity=CAPACITY)
        for _ in range(6):
            _, state = advance(stack, torch.randn(B, 1, D), state)
        state = state.reorder(torch.tensor([0, 0, 0]))  # all have the same past now
        _, state = advance(stack, torch.randn(B, 1, D), state)
        last = state.self_caches[0].keys[:, 6].clone()
        moved = state.reorder(torch.tensor([0, 2, 2]))
    assert moved.self_caches is state.self_caches
    assert torch.equal(moved.self_caches[0].keys[:, 6], last[[0, 2, 2]])
