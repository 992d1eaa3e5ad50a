"""Products that do not fit into the free memory of the CPU are refused before they are allocated."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.kernels import memory
from saccade.kernels.cpu import native
from saccade.kernels.cpu.fma import FmaLinear
from saccade.kernels.cpu.prepared import Int8Linear, PackedLinear
from saccade.kernels.cpu.vnni import VnniLinear
from saccade.kernels.memory import find_widest, guard_products

ROWS, OUTPUTS = 6, 300
INT8 = torch.ones(OUTPUTS, 32, dtype=torch.int8), torch.ones(OUTPUTS), None
LAYERS = {
    "float, by oneDNN": lambda: PackedLinear(torch.ones(OUTPUTS, 32), None),
    "int8, by oneDNN": lambda: Int8Linear(*INT8),
    "float, in C": lambda: FmaLinear(torch.ones(OUTPUTS, 32), None),
    "int8, in C": lambda: VnniLinear(*INT8[:2], None, relu=False),
}


@pytest.fixture
def free(monkeypatch):
    """Sets the free memory."""
    monkeypatch.setattr(memory, "MIN_CHECKED_BYTES", 0)
    return lambda count: monkeypatch.setattr(memory, "is_free", lambda needed: needed <= count)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_packed_layer_refuses_rows_whose_outputs_are_not_free(kind, free):
    if "in C" in kind and native.explain_missing():
        pytest.skip("no C kernels here")
    layer = LAYERS[kind]()
    free(10**9)
    assert layer(torch.ones(ROWS, 32)).shape == (ROWS, OUTPUTS)
    free(2 * 4 * ROWS * OUTPUTS - 1)
    with pytest.raises(torch.OutOfMemoryError, match="6 rows of"):
        layer(torch.ones(ROWS, 32))


@pytest.mark.parametrize(("grad", "copies"), [(False, 2), (True, 4)])
def test_a_linear_layer_is_checked_where_it_could_outgrow_the_memory(free, grad, copies):
    layer, x = nn.Linear(4, OUTPUTS), torch.ones(ROWS, 4)
    assert find_widest(nn.Sequential(layer, nn.Linear(OUTPUTS, 4))) == OUTPUTS
    with torch.set_grad_enabled(grad):
        free(copies * 4 * ROWS * OUTPUTS)
        with guard_products(OUTPUTS):
            layer(x)
        free(copies * 4 * ROWS * OUTPUTS - 1)
        with guard_products(OUTPUTS), pytest.raises(torch.OutOfMemoryError):
            layer(x)
        layer(x)  # not outside of the block


def test_narrow_layers_are_not_watched(monkeypatch):
    monkeypatch.setattr(memory, "check_product", lambda *_, **__: pytest.fail("it is watched"))
    with guard_products(100):
        F.linear(torch.ones(2, 3), torch.ones(100, 3))
