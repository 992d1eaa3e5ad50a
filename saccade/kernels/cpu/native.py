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

from saccade.errors import SaccadeError
from saccade.files import default_cache, replacing

SETS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fopenmp", *(f"-m{name}" for name in SETS))
PATIENCE = 120  # seconds for a compiler
ONE_AT_A_TIME = Lock()  # of the threads of a server


@lru_cache
def library(source: Path) -> ctypes.CDLL | None:
    """What is compiled from a source; None where the processor, the system or the compiler is another."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not torch.cpu._is_vnni_supported():
        return None
    try:
        with ONE_AT_A_TIME:
            return ctypes.CDLL(str(compiled(source, default_cache() / "kernels")))
    except (OSError, SaccadeError, subprocess.SubprocessError):
        return None


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
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") or "cc"]
    texts = (source, *sorted(source.parent.glob("*.h")))
    made_from = repr((compiler, FLAGS)).encode() + b"".join(path.read_bytes() for path in texts)
    kept = folder / f"{source.stem}-{hashlib.blake2b(made_from, digest_size=8).hexdigest()}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(kept) as temporary:
            part = temporary.with_suffix(".o")
            try:
                _run([*compiler, *FLAGS, "-c", str(source), "-o", str(part)])
                # Without -fopenmp: the threads are to be those of torch, whose library is there already.
                _run([*compiler, "-shared", str(part), "-o", str(temporary)])
            finally:
                part.unlink(missing_ok=True)
    return kept


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
