"""Kernels of the GPU against plain torch: in Triton's interpreter on any machine, and on a GPU where there is one.

Both run in processes of their own: the interpreter is chosen before triton is imported, and signature checks, which the
tests install, would break the graphs of torch.compile.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from devices import DEVICES

from saccade.layers.attention.backends import HAS_TRITON

KERNELS = ("activation", "attention", "loss", "norm", "projection")


@functools.cache
def run_checks(device: str) -> dict[str, str]:
    """Tracebacks of all checks, run in one process: importing torch takes longer than most of them."""
    command = [sys.executable, str(Path(__file__).with_name("interpreted.py")), device, *KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not HAS_TRITON, reason="needs the package triton")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_torch_with_gradients(name: str, device: str) -> None:
    assert run_checks(device)[name] == ""
