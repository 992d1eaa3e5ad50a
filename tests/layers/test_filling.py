"""The lean way through a stack against the stack itself."""

import pytest
import torch

from saccade.config import schema
from saccade.layers.blocks import filling
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.build.options import Options
from saccade.model.build.stacks import build_writer_stack

SIZES = {"layers": 2, "dim": 12, "heads": 3, "ff": 17}
PLAIN = {"kind": "sinusoidal"}
MASK = torch.arange(5) < torch.tensor([[5], [3]])


def made(*, causal=False, memory_dim=12, positions=PLAIN, **stack):
    torch.manual_seed(1)
    part = schema.FillWriter(stack={**SIZES, **stack}, positions=positions)
    return build_writer_stack(part, Options(schema.Train(), {}), memory_dim=memory_dim, causal=causal).eval()


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"heads_form": "full"}, {"gated": True}, {"residual": False}])
@pytest.mark.parametrize("positions", [PLAIN, {"kind": "rotary"}])
@torch.no_grad()
def test_states_are_those_of_the_stack(changes, positions):
    stack = made(positions=positions, **changes)
    x, memory = torch.randn(2, 5, 12), Memory(torch.randn(2, 7, 12), torch.arange(7) < torch.tensor([[4], [7]]))
    expected = stack(x, MASK, memory)[0]

    looked = filling.look(stack, memory.states, memory.mask)
    got = filling.over_texts(stack, x, filling.bias_of(MASK, x), looked)

    assert filling.covers(stack)
    torch.testing.assert_close(got[MASK], expected[MASK], atol=1e-5, rtol=0)


@torch.no_grad()
def test_rows_that_share_memory_see_what_they_would_see_alone():
    stack = made(norm="pre")
    x, states = torch.randn(6, 5, 12), torch.randn(2, 7, 12)
    real = torch.arange(7) < torch.tensor([[4], [7]])

    got = filling.over_texts(stack, x, None, filling.look(stack, states, real))

    each = [part.repeat_interleave(3, 0) for part in (states, real)]
    torch.testing.assert_close(got, stack(x, None, Memory(*each))[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_reader_has_no_memory():
    stack, x = made(memory_dim=None), torch.randn(2, 5, 12)
    got = filling.over_texts(stack, x, filling.bias_of(MASK, x))
    torch.testing.assert_close(got[MASK], stack(x, MASK)[0][MASK], atol=1e-5, rtol=0)


class Other(torch.nn.Linear):
    """A user's own stack."""

    dim = 2

    def __init__(self):
        super().__init__(2, 2)


def test_what_it_does_not_know_is_not_covered():
    plain = made()
    assert not filling.covers(plain)  # gradients may be asked for
    with torch.no_grad():
        assert filling.covers(plain)
        assert not filling.covers(made(causal=True))
        assert not filling.covers(made(window=2))
        assert not filling.covers(made(positions={"kind": "shaw"}))
        assert not filling.covers(made(ff=0))
        assert not filling.covers(Other())
        with record(plain):
            assert not filling.covers(plain)


def test_no_bias_where_all_keys_are_real():
    x = torch.zeros(1, dtype=torch.bfloat16)
    assert filling.bias_of(None, x) is None
    assert filling.bias_of(torch.ones(2, 3, dtype=torch.bool), x) is None
    bias = filling.bias_of(MASK, x)
    assert bias.shape == (2, 1, 1, 5) and bias.dtype == torch.bfloat16
    assert bias[1, 0, 0].tolist() == [0, 0, 0, -torch.inf, -torch.inf]
