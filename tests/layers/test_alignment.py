"""Attention with neighbouring cells, and hard attention."""

from dataclasses import replace

import pytest
import torch

from saccade.layers.attention.alignment import NOT_SAMPLED, HardAttention, NeighborhoodAttention
from saccade.layers.attention.scores import Additive
from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.layers.memory import Memory
from saccade.layers.record import record

HIGH, WIDE, M, E = 3, 5, 7, 2


def picture(rows: int = 2) -> Memory:
    states = torch.randn(rows, HIGH * WIDE, M, dtype=torch.float64)
    return Memory(states, torch.ones(rows, HIGH * WIDE, dtype=torch.bool), grid=(HIGH, WIDE))


def test_keys_are_the_sum_over_a_cell_and_the_eight_around_it():
    layer, memory = NeighborhoodAttention(E, key_dim=M, hidden_dim=E).double(), picture()
    cells, keys = memory.states.unflatten(1, (HIGH, WIDE)), layer.project_keys(memory).unflatten(1, (HIGH, WIDE))
    for y in range(HIGH):
        for x in range(WIDE):
            wanted = layer.score.key(cells[:, y, x])
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    inside = 0 <= y + down < HIGH and 0 <= x + right < WIDE
                    if inside and (down or right):
                        wanted = (
                            wanted + cells[:, y + down, x + right] @ layer.around.weight[:, :, 1 + down, 1 + right].T
                        )
            torch.testing.assert_close(keys[:, y, x], wanted)


def hard(*, seed: int = 0) -> RecurrentWriter:
    torch.manual_seed(seed)
    recurrence = BahdanauRecurrence(E, cell="lstm", layers=1, memory_dim=M, hard=True)
    first = InitialState(E, cell="lstm", layers=1, memory_dim=M, context="mean", initial="predicted")
    return RecurrentWriter(recurrence, first=first, dim=E).double()


def test_a_hard_look_sees_one_state_alone_and_the_best_one_when_it_writes():
    layer, memory = HardAttention(Additive(E, key_dim=M, hidden_dim=E)).double().eval(), picture()
    seen, weights, chosen = layer(torch.randn(2, 4, E).double(), layer.project_memory(memory))
    torch.testing.assert_close(chosen, weights.argmax(-1))
    for row in range(2):
        torch.testing.assert_close(seen[row], memory.states[row][chosen[row]])


def test_hard_attention_samples_positions_by_their_weights():
    layer, draws = HardAttention(Additive(E, key_dim=M, hidden_dim=E)).double().train(), 20_000
    states = 3 * torch.randn(1, 4, M).double()
    source = layer.project_memory(Memory(states, torch.tensor([[True, True, False, True]])))._replace(use_soft=None)
    torch.manual_seed(1)
    with torch.no_grad():
        layer.score.energy.weight.mul_(3)
        _, weights, chosen = layer(torch.randn(1, 1, E).double().expand(1, draws, E), source)
    share = torch.bincount(chosen[0], minlength=4) / draws
    torch.testing.assert_close(share.double(), weights[0, 0], atol=0.015, rtol=0)
    assert share[2] == 0


def test_in_training_the_given_rows_use_soft_attention():
    layer, memory = HardAttention(Additive(E, key_dim=M, hidden_dim=E)).double().train(), picture(500)
    torch.manual_seed(1)
    soft = torch.rand(500, 1) < 0.5
    source = layer.project_memory(replace(memory, soft_rows=soft))
    seen, weights, chosen = layer(torch.randn(500, 3, E).double(), source)
    mixed = (chosen == NOT_SAMPLED).all(1)
    assert torch.equal(mixed, soft[:, 0]) and (chosen[~mixed] != NOT_SAMPLED).all()
    torch.testing.assert_close(seen[mixed], (weights @ memory.states)[mixed])
    for row in (~mixed).nonzero()[:, 0]:
        torch.testing.assert_close(seen[row], memory.states[row][chosen[row]])


@pytest.mark.parametrize("training", [True, False])
def test_a_hard_look_at_nothing_sees_zeros(training):
    layer = HardAttention(Additive(E, key_dim=M, hidden_dim=E)).double().train(training)
    memory = Memory(torch.randn(2, 3, M).double(), torch.tensor([[True, True, False], [False, False, False]]))
    seen, weights, _ = layer(torch.randn(2, 4, E).double(), layer.project_memory(memory))
    assert (seen[1] == 0).all() and (weights[1] == 0).all()
    assert (seen[0] != 0).all()


def test_what_was_sampled_is_returned_beside_the_weights():
    stack, memory = hard().train(), picture()
    attention = stack(torch.randn(2, 4, E).double(), None, memory)[3]["attention"]
    assert attention.weights.shape == (2, 4, HIGH * WIDE)
    assert attention.sampled_positions.shape == (2, 4)
    assert attention.weights.requires_grad


def test_a_hard_writer_steps_as_it_reads_whole_texts():
    stack, memory, words = hard().eval(), picture(), torch.randn(2, 4, E).double()
    whole, state = stack(words, None, memory)[0], stack.start(memory, rows=2, capacity=4)
    for t in range(4):
        expected, _, state, _ = stack(words[:, t : t + 1], None, None, state)
        torch.testing.assert_close(expected[:, 0], whole[:, t])


def test_a_recorded_hard_look_is_the_one_that_was_used():
    stack, memory, words = hard().eval(), picture(), torch.randn(2, 4, E).double()
    with record(stack) as maps:
        attention = stack(words, None, memory)[3]["attention"]
    [shown] = maps.values()
    torch.testing.assert_close(shown[:, 0].sum(-1), torch.ones(2, 4).double())
    torch.testing.assert_close(shown[:, 0].argmax(-1), attention.weights.argmax(-1))
    assert set(shown.unique().tolist()) == {0.0, 1.0}
