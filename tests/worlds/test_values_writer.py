"""The writer of action values."""

import pytest
import torch
from torch import nn

from saccade.config.schema import RecurrentWriterStack, Train
from saccade.layers.memory import Memory
from saccade.model.build.options import Options
from saccade.model.build.recurrent import build_recurrent_writer
from saccade_worlds.playing.writer import ValuesWriter

STATES, WIDTH, DIM, ACTIONS = 7, 5, 11, 3
LENGTHS = [4, 1, 3]


def writer(kind="additive"):
    torch.manual_seed(1)
    settings = RecurrentWriterStack(dim=DIM, attention=kind, context="mean", dropout=0.0)
    stack = build_recurrent_writer(settings, Options(Train(), {}), memory_dim=WIDTH)
    return ValuesWriter(stack, size=ACTIONS).double().eval()


def pictures():
    """The memory of all pictures, one episode after the other."""
    torch.manual_seed(2)
    count = sum(LENGTHS)
    return Memory(torch.randn(count, STATES, WIDTH).double(), torch.ones(count, STATES, dtype=torch.bool))


def episodes():
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    torch.manual_seed(3)
    return torch.randint(1, ACTIONS + 1, mask.shape) * mask, mask


@pytest.mark.parametrize("kind", ["additive", "general", "none"])
def test_values_of_whole_episodes_are_those_of_their_steps(kind):
    made, memory, (actions, mask) = writer(kind), pictures(), episodes()
    whole = made(actions, mask, memory)
    assert whole.shape == (3, 4, ACTIONS)
    row = 0
    for episode, length in enumerate(LENGTHS):
        state, before = None, torch.zeros(1, dtype=torch.long)
        for t in range(length):
            now = Memory(memory.states[row : row + 1], memory.mask[row : row + 1])
            step = made.step(before, now, state, align=True)
            torch.testing.assert_close(step.logits[0], whole[episode, t])
            assert (step.weights is None) == (kind == "none")
            if step.weights is not None:
                assert step.weights.shape == (1, STATES)
                torch.testing.assert_close(step.weights.sum(), torch.tensor(1.0).double())
            state, before, row = step.state, actions[episode, t : t + 1], row + 1


def test_values_depend_on_earlier_pictures_and_actions():
    made, memory, (actions, mask) = writer(), pictures(), episodes()
    whole = made(actions, mask, memory)
    other = memory.states.clone()
    other[1] += 1  # the second picture of the first episode
    changed = (made(actions, mask, Memory(other, memory.mask)) - whole).abs().amax(-1) > 1e-9
    assert changed.tolist() == [[False, True, True, True], [False] * 4, [False] * 4]
    actions[0, 1] = actions[0, 1] % ACTIONS + 1
    changed = (made(actions, mask, memory) - whole).abs().amax(-1) > 1e-9
    assert changed[0].tolist() == [False, False, True, True]


def test_values_of_actions_alone_are_a_product():
    made = writer()
    assert isinstance(made.output, nn.Linear) and made.output.out_features == ACTIONS
    assert made.dim == DIM and made.embedding.num_embeddings == ACTIONS + 1
