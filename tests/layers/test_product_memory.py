"""Results that do not fit into the free memory of the CPU are refused before they are allocated."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.kernels import memory
from saccade.kernels.cpu import native
from saccade.kernels.cpu.fma import FmaLinear
from saccade.kernels.cpu.prepared import Int8Linear, PackedLinear
from saccade.kernels.cpu.vnni import VnniLinear
from saccade.kernels.memory import MemoryGuard, find_widest, guard_memory

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


X, W = torch.ones(ROWS, 32), torch.ones(OUTPUTS, 32)
OPERATIONS = {
    "linear": lambda: F.linear(X, W),
    "linear with bias": lambda: F.linear(X, W, torch.ones(OUTPUTS)),
    "product": lambda: X @ W.T,
    "products": lambda: torch.bmm(torch.ones(3, 50, 2), torch.ones(3, 2, 70)),
    "sum of pairs": lambda: torch.ones(7, 1, 3) + torch.ones(1, 40, 3),
    "embedding": lambda: F.embedding(torch.zeros(2, 9, dtype=torch.long), W),
    "pointwise convolution": lambda: F.conv1d(torch.ones(2, 3, 7), torch.ones(50, 3, 1)),
    "unfolding": lambda: F.unfold(torch.ones(1, 3, 8, 8), 3, padding=1),
    "concatenation": lambda: torch.cat([X, X, W]),
    "new tensor": lambda: torch.empty(30, 40),
    "new tensor like one": lambda: X.new_zeros(30, 40),
    "copy of an expanded one": lambda: torch.ones(3, 1).expand(3, 200).contiguous(),
    "sum over rows": lambda: W.sum(0),
    "repeated": lambda: X.repeat(2, 3),
    "other type": lambda: W.double(),
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("kind", OPERATIONS)
def test_an_operation_whose_result_is_not_free_is_refused(kind, mode, free):
    with mode():
        needed = OPERATIONS[kind]().nbytes
        free(needed)
        with MemoryGuard():
            OPERATIONS[kind]()
        free(needed - 1)
        with MemoryGuard(), pytest.raises(torch.OutOfMemoryError):
            OPERATIONS[kind]()
        OPERATIONS[kind]()  # not outside of the block


def test_views_and_changes_in_place_need_no_memory(free):
    free(0)
    x = torch.ones(4, 6)
    with MemoryGuard():
        x.T.view(6, 4).expand(2, 6, 4)[0].add_(1)
    assert torch.equal(x, torch.full((4, 6), 2.0))


def test_a_backward_operation_is_checked_too(free):
    x = torch.ones(3, 1, requires_grad=True)
    with MemoryGuard():
        y = x.expand(3, 50)
        free(4 * 3 * 50)
        y = y.sum()
        y.backward()
        y = (x * x).sum()
        free(11)
        with pytest.raises(torch.OutOfMemoryError):
            y.backward()


def test_many_results_of_small_size_are_counted_together(free, monkeypatch):
    free(0)
    monkeypatch.setattr(memory, "MIN_CHECKED_BYTES", 1000)
    with MemoryGuard():
        kept = [torch.empty(100) for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError):
            kept.append(torch.empty(100))


def test_operations_are_watched_where_the_widest_layer_could_outgrow_the_memory(free):
    layer, x = nn.Linear(4, OUTPUTS), torch.ones(ROWS, 4)
    widest = find_widest(nn.Sequential(layer, nn.Linear(OUTPUTS, 4)))
    assert widest == OUTPUTS
    free(2 * 4 * 65536 * OUTPUTS - 1)
    with guard_memory(widest):
        free(0)
        with pytest.raises(torch.OutOfMemoryError):
            layer(x)
    free(2 * 4 * 65536 * OUTPUTS)
    with guard_memory(widest):
        free(0)
        layer(x)
