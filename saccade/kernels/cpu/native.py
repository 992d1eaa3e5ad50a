"""C kernels for decoding on a CPU, compiled when they are first needed and cached on disk.

They need Linux, a processor with AVX-512 VNNI and a C compiler; elsewhere torch computes the same.
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
from saccade.files import atomic_replace, atomic_write, check_private, get_cache_folder
from saccade.kernels.failures import report_failure
from saccade.kernels.memory import check_product

CPU_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fopenmp", *(f"-m{name}" for name in CPU_FEATURES))
COMPILE_TIMEOUT_SECONDS = 120
COMPILE_LOCK = Lock()  # the threads of a server compile one source at a time


@lru_cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """The compiled library of a source; None where the system, processor or compiler does not support it."""
    if explain_missing():
        return None
    try:
        with COMPILE_LOCK:
            return ctypes.CDLL(str(compile_library(source, get_cache_folder() / "kernels")))
    except (OSError, SaccadeError, subprocess.SubprocessError) as error:
        report_failure(f"C kernel {source.stem}", error, f"{source.name} could not be compiled, using torch: {error}")
        return None


def explain_missing() -> str:
    """The reason why C kernels are not available on this machine; empty where they are."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the C kernels are for Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    if not torch.cpu._is_vnni_supported():
        return "the processor has no AVX-512 VNNI, which the C kernels need"
    command = get_compiler_command()[0]
    return "" if shutil.which(command) else f"the C compiler {command} is not installed"


def get_compiler_command() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") or "cc"]


def load_function(source: Path, name: str, *argument_types: Any) -> Any:
    """A C function without return value; None where C kernels are not available."""
    library = load_library(source)
    if library is None:
        return None
    function = library[name]
    function.argtypes, function.restype = list(argument_types), None
    return function


def compile_library(source: Path, folder: Path) -> Path:
    """The path of the shared library in `folder`; compiles if the source, a header or the compiler has changed.

    It also compiles again what is damaged: a library that was cut short would end the process when it is loaded.
    """
    command = get_compiler_command()
    sources = (source, *sorted(source.parent.glob("*.h")))
    fingerprint = repr((command, FLAGS)).encode() + b"".join(path.read_bytes() for path in sources)
    path = folder / f"{source.stem}-{hashlib.blake2b(fingerprint, digest_size=8).hexdigest()}.so"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(folder)
    if not is_intact(path):
        with atomic_replace(path) as temporary:
            object_file = temporary.with_suffix(".o")
            try:
                _run([*command, *FLAGS, "-c", str(source), "-o", str(object_file)])
                # Linked without -fopenmp, so that the OpenMP library that torch has loaded is used.
                _run([*command, "-shared", str(object_file), "-o", str(temporary)])
            finally:
                object_file.unlink(missing_ok=True)
            digest = compute_digest(temporary)
        atomic_write(get_digest_path(path), digest.encode())
    return path


def is_intact(library: Path) -> bool:
    """Whether a library is there, is ours, and has the digest that was written when it was compiled."""
    try:
        owners = {path.stat().st_uid for path in (library, get_digest_path(library))}
        return owners == {os.getuid()} and get_digest_path(library).read_text() == compute_digest(library)
    except (OSError, UnicodeDecodeError):
        return False


def get_digest_path(library: Path) -> Path:
    return library.with_suffix(".sha256")


def compute_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class NativeLinear(nn.Module):
    """A linear layer in C with packed weights: x W^T + b, followed by a ReLU if `relu`.

    `scratch_floats` is the size of the buffer that the C function needs per row.
    """

    def __init__(self, *, in_features: int, out_features: int, relu: bool, scratch_floats: int = 0) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.relu, self.scratch_floats = relu, scratch_floats
        self._struct: ctypes.Structure | None = None

    @property
    def multiply(self) -> Any:
        """The compiled function."""
        raise NotImplementedError

    def build_struct(self) -> ctypes.Structure:
        """The C structure with pointers to the weights."""
        raise NotImplementedError

    @property
    def struct(self) -> ctypes.Structure:
        if self._struct is None:
            self._struct = self.build_struct()
        return self._struct

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        x = x.float().contiguous()
        rows = x.numel() // self.in_features
        check_product(rows, self.out_features + self.scratch_floats)
        y = x.new_empty(*x.shape[:-1], self.out_features)
        scratch = x.new_empty(rows * self.scratch_floats) if self.scratch_floats else None
        pointer = None if scratch is None else scratch.data_ptr()
        self.multiply(self.struct, x.data_ptr(), y.data_ptr(), pointer, rows, torch.get_num_threads())
        return y

    def __getstate__(self) -> dict[str, Any]:
        """Without the C structure: the weights of a copy have other addresses."""
        return {**super().__getstate__(), "_struct": None}


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT_SECONDS)
