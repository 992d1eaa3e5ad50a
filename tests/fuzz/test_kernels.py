"""Memory that ends at a page without access, and the rounds of C kernels that use it."""

import ctypes
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from kernels import GuardedMemory, check_int8_product, guard_tensors

PROGRAM = Path(__file__).with_name("kernels.py")


def read_beyond(count: int) -> None:
    buffer = GuardedMemory().allocate(5000)
    ctypes.string_at(ctypes.addressof(buffer), count)


@pytest.mark.parametrize(("count", "code"), [(5000, 0), (5001, -signal.SIGSEGV)])
def test_the_first_byte_beyond_the_end_cannot_be_read(count, code):
    process = multiprocessing.get_context("fork").Process(target=read_beyond, args=(count,))
    process.start()
    process.join()
    assert process.exitcode == code


def test_new_tensors_lie_in_guarded_memory_and_keep_their_values():
    import torch

    memory = GuardedMemory()
    with torch.inference_mode(), guard_tensors(memory) as move:
        moved = move(torch.arange(12.0).view(3, 4).t())
        copied = moved.contiguous()
    assert moved.stride() == (1, 4) and torch.equal(moved, torch.arange(12.0).view(3, 4).t())
    inside = [
        any(start <= tensor.data_ptr() < start + size for start, size in memory.pages) for tensor in (moved, copied)
    ]
    assert inside == [True, True]


@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        (2.0, 2.01, True),  # inputs are rounded
        (2.0, 2.02, False),
        (math.inf, 1e39, True),  # more than float32 holds
        (math.inf, 1e30, False),
        (-math.inf, 1e39, False),
        (math.nan, 1e39, False),
        (1e38, 1e39, False),
    ],
)
def test_an_int8_product_is_compared_with_float64(found, expected, right):
    import torch

    values = torch.tensor([found]), torch.tensor([expected], dtype=torch.float64), torch.tensor([0.011])
    with nullcontext() if right else pytest.raises(AssertionError, match="more than rounding"):
        check_int8_product(*values)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler with sanitizers")
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("lane_mask(p->outputs - column), result", "(__mmask16)0xffff, result")]
)
def test_rounds_pass_and_a_store_without_its_mask_is_noticed(tmp_path, before, after):
    """The second kernel writes whole vectors, also beyond the last output."""
    tree = tmp_path / "tree"
    root = PROGRAM.parents[2]
    shutil.copytree(root / "saccade", tree / "saccade", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(root / "tests" / "fuzz", tree / "tests" / "fuzz", ignore=shutil.ignore_patterns("corpus"))
    shutil.copy(root / "tests" / "laid_out.py", tree / "tests")
    source = tree / "saccade" / "kernels" / "cpu" / "fma.c"
    assert before in source.read_text()
    source.write_text(source.read_text().replace(before, after) if before else source.read_text())
    command = [sys.executable, "tests/fuzz/kernels.py", "--rounds", "40", "--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    assert (done.returncode == 0) == (not before), f"{done.stdout}\n{done.stderr[-2000:]}"
