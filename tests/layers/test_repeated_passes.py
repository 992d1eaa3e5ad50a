"""Fast repeated passes against the stack itself."""

import pytest
import torch

from saccade.config import schema
from saccade.layers.blocks import repeated_passes
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.build.options import Options
from saccade.model.build.stacks import build_writer_stack

SIZES = {"layers": 2, "dim": 12, "heads": 3, "ff": 17}
PLAIN = {"kind": "sinusoidal"}
MASK = torch.arange(5) < torch.tensor([[5], [3]])


def build_stack(*, causal=False, memory_dim=12, positions=PLAIN, **stack):
    torch.manual_seed(1)
    part = schema.FillWriter(stack={**SIZES, **stack}, positions=positions)
    return build_writer_stack(part, Options(schema.Train(), {}), memory_dim=memory_dim, causal=causal).eval()


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre"}, {"head_projection": "full"}, {"gated": True}, {"residual": False}]
)
@pytest.mark.parametrize("positions", [PLAIN, {"kind": "rotary"}])
@torch.no_grad()
def test_states_are_those_of_the_stack(changes, positions):
    stack = build_stack(positions=positions, **changes)
    x, memory = torch.randn(2, 5, 12), Memory(torch.randn(2, 7, 12), torch.arange(7) < torch.tensor([[4], [7]]))
    expected = stack(x, MASK, memory)[0]

    cross_memory = repeated_passes.project_memory(stack, memory.states, memory.mask)
    got = repeated_passes.run_stack(stack, x, repeated_passes.build_key_bias(MASK, x), cross_memory)

    assert repeated_passes.supports(stack)
    torch.testing.assert_close(got[MASK], expected[MASK], atol=1e-5, rtol=0)


@torch.no_grad()
def test_rows_that_share_memory_see_what_they_would_see_alone():
    stack = build_stack(norm="pre")
    x, states = torch.randn(6, 5, 12), torch.randn(2, 7, 12)
    real = torch.arange(7) < torch.tensor([[4], [7]])

    got = repeated_passes.run_stack(stack, x, None, repeated_passes.project_memory(stack, states, real))

    each = [part.repeat_interleave(3, 0) for part in (states, real)]
    torch.testing.assert_close(got, stack(x, None, Memory(*each))[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_reader_has_no_memory():
    stack, x = build_stack(memory_dim=None), torch.randn(2, 5, 12)
    got = repeated_passes.run_stack(stack, x, repeated_passes.build_key_bias(MASK, x))
    torch.testing.assert_close(got[MASK], stack(x, MASK)[0][MASK], atol=1e-5, rtol=0)


class Other(torch.nn.Linear):
    """A user's own stack."""

    dim = 2

    def __init__(self):
        super().__init__(2, 2)


def test_what_it_does_not_know_is_not_covered():
    plain = build_stack()
    assert not repeated_passes.supports(plain)  # gradients may be asked for
    with torch.no_grad():
        assert repeated_passes.supports(plain)
        assert not repeated_passes.supports(build_stack(causal=True))
        assert not repeated_passes.supports(build_stack(window=2))
        assert not repeated_passes.supports(build_stack(positions={"kind": "shaw"}))
        assert not repeated_passes.supports(build_stack(ff=0))
        assert not repeated_passes.supports(Other())
        with record(plain):
            assert not repeated_passes.supports(plain)


def test_no_bias_where_all_keys_are_real():
    x = torch.zeros(1, dtype=torch.bfloat16)
    assert repeated_passes.build_key_bias(None, x) is None
    assert repeated_passes.build_key_bias(torch.ones(2, 3, dtype=torch.bool), x) is None
    bias = repeated_passes.build_key_bias(MASK, x)
    assert bias.shape == (2, 1, 1, 5) and bias.dtype == torch.bfloat16
    assert bias[1, 0, 0].tolist() == [0, 0, 0, -torch.inf, -torch.inf]
