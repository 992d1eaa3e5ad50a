"""Kernels of the GPU against plain torch: in Triton's interpreter on any machine, and on a GPU where there is one."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from saccade.layers.attention.backends import HAS_TRITON, MAX_SHORT_KERNEL_LENGTH_FP32

FOLDER = Path(__file__).parent
INTERPRETED = ("activation", "attention", "loss", "norm", "projection")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def interpreter_results() -> dict[str, str]:
    """Tracebacks of all checks, run in one process: importing torch takes longer than most of them."""
    command = [sys.executable, str(FOLDER / "interpreted.py"), *INTERPRETED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not HAS_TRITON, reason="needs the package triton")
@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted_kernel_equals_torch_with_gradients(name: str, interpreter_results: dict[str, str]) -> None:
    assert interpreter_results[name] == ""


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(f"interpreted_{name}")


@CUDA
@pytest.mark.parametrize("longest", [16, 30, 60, 100, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_gpu(longest: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check = module("attention", monkeypatch).assert_attention_inside_texts
    for kind in [torch.bfloat16] if longest > MAX_SHORT_KERNEL_LENGTH_FP32 else [torch.float32, torch.bfloat16]:
        check([longest, 5, 1, longest - 3], causal=causal, width=64, dtype=kind, device="cuda")


@CUDA
def test_norms_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module("norm", monkeypatch).assert_all_kernels("cuda")


@CUDA
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11 does so itself
def test_joined_projection_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module("projection", monkeypatch).assert_all_forms("cuda")


@CUDA
def test_activations_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module("activation", monkeypatch).assert_all_activations("cuda")
