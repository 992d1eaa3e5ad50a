"""The gate of the context vector, and attention weights with gradients."""

import torch

from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.layers.blocks.recurrent_writer import InitialState, RecurrentWriter
from saccade.layers.memory import Memory


def writer(*, gate):
    recurrence = BahdanauRecurrence(5, cell="lstm", layers=1, memory_dim=3, gate=gate)
    first = InitialState(5, cell="lstm", layers=1, memory_dim=3, context="mean", initial="predicted")
    return RecurrentWriter(recurrence, first=first, dim=5)


def memory(states):
    return Memory(states, torch.ones(states.shape[:2], dtype=torch.bool))


def test_a_closed_gate_lets_nothing_through():
    """Only the mean of memory is known then, through the first state."""
    stack, words = writer(gate=True).eval(), torch.randn(2, 4, 5)
    states = torch.randn(2, 6, 3)
    others = states.flip(1) + torch.tensor([1.0, -1.0] * 3)[None, :, None]  # other states of the same mean
    with torch.no_grad():
        stack.recurrence.gate.weight.zero_()
        stack.recurrence.gate.bias.fill_(-100.0)
        closed = [stack(words, None, memory(x))[0] for x in (states, others)]
        stack.recurrence.gate.bias.fill_(0.0)
        half = [stack(words, None, memory(x))[0] for x in (states, others)]
    torch.testing.assert_close(*closed)
    assert not torch.allclose(*half, atol=1e-3)


def test_an_open_gate_is_none():
    gated, plain = writer(gate=True).eval(), writer(gate=False).eval()
    plain.load_state_dict({name: x for name, x in gated.state_dict().items() if "gate" not in name})
    with torch.no_grad():
        gated.recurrence.gate.weight.zero_()
        gated.recurrence.gate.bias.fill_(100.0)
    words, read = torch.randn(2, 4, 5), memory(torch.randn(2, 6, 3))
    torch.testing.assert_close(gated(words, None, read)[0], plain(words, None, read)[0])


def test_attention_weights_are_returned_with_gradients():
    stack, words, read = writer(gate=True), torch.randn(2, 4, 5), memory(torch.randn(2, 6, 3))
    attention = stack(words, None, read)[3]["attention"]
    assert attention.weights.shape == (2, 4, 6)
    torch.testing.assert_close(attention.weights.sum(-1), torch.ones(2, 4))
    assert attention.weights.requires_grad
