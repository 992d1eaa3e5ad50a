"""Kernels in C for decoding on a CPU: compiled when they are first wanted, and kept.

They are for Linux on processors with AVX-512 VNNI, where there is a compiler; everywhere else torch computes the same.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.files import default_cache, replacing
from saccade.kernels.failures import report_failure

SETS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fopenmp", *(f"-m{name}" for name in SETS))
PATIENCE = 120  # seconds for a compiler
ONE_AT_A_TIME = Lock()  # of the threads of a server


@lru_cache
def library(source: Path) -> ctypes.CDLL | None:
    """What is compiled from a source; None where the processor, the system or the compiler is another."""
    if explain_missing():
        return None
    try:
        with ONE_AT_A_TIME:
            return ctypes.CDLL(str(compiled(source, default_cache() / "kernels")))
    except (OSError, SaccadeError, subprocess.SubprocessError) as error:
        report_failure(f"C kernel {source.stem}", error, f"{source.name} could not be compiled, torch goes on: {error}")
        return None


def explain_missing() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the C kernels are for Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    if not torch.cpu._is_vnni_supported():
        return "the processor has no AVX-512 VNNI, which the C kernels need"
    command = compiler()[0]
    return "" if shutil.which(command) else f"the C compiler {command} is not installed"


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") or "cc"]


def function(source: Path, name: str, *kinds: Any) -> Any:
    """A function of a source that takes arguments of these kinds and gives nothing back; None where there is none."""
    found = library(source)
    if found is None:
        return None
    made = found[name]
    made.argtypes, made.restype = list(kinds), None
    return made


def compiled(source: Path, folder: Path) -> Path:
    """The library that is kept in a folder, made anew when the source or a header beside it is another."""
    command = compiler()
    texts = (source, *sorted(source.parent.glob("*.h")))
    made_from = repr((command, FLAGS)).encode() + b"".join(path.read_bytes() for path in texts)
    kept = folder / f"{source.stem}-{hashlib.blake2b(made_from, digest_size=8).hexdigest()}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(kept) as temporary:
            part = temporary.with_suffix(".o")
            try:
                _run([*command, *FLAGS, "-c", str(source), "-o", str(part)])
                # Without -fopenmp: the threads are to be those of torch, whose library is there already.
                _run([*command, "-shared", str(part), "-o", str(temporary)])
            finally:
                part.unlink(missing_ok=True)
    return kept


class NativeProduct(nn.Module):
    """x W^T + b in C, from weights in a layout of its own; with `relu`, what is below 0 becomes 0.

    `scratch` is how many floats the C function needs for each row.
    """

    def __init__(self, *, inputs: int, outputs: int, relu: bool, scratch: int = 0) -> None:
        super().__init__()
        self.inputs, self.outputs, self.relu, self.scratch = inputs, outputs, relu, scratch
        self._structure: ctypes.Structure | None = None

    @property
    def multiply(self) -> Any:
        """The compiled function."""
        raise NotImplementedError

    def make_structure(self) -> ctypes.Structure:
        """What the C function is told of the weights."""
        raise NotImplementedError

    @property
    def structure(self) -> ctypes.Structure:
        if self._structure is None:
            self._structure = self.make_structure()
        return self._structure

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        x = x.float().contiguous()
        rows = x.numel() // self.inputs
        y = x.new_empty(*x.shape[:-1], self.outputs)
        scratch = x.new_empty(rows * self.scratch) if self.scratch else None
        at = None if scratch is None else scratch.data_ptr()
        self.multiply(self.structure, x.data_ptr(), y.data_ptr(), at, rows, torch.get_num_threads())
        return y

    def __getstate__(self) -> dict[str, Any]:
        """A copy has weights of its own, at other addresses."""
        return {**super().__getstate__(), "_structure": None}


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
