"""What a result was measured with: hardware, versions of packages, and the commit of the source tree."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("saccade", "torch", "tokenizers", "sacrebleu", "numpy")


def get_hardware() -> str:
    """Return the name of the GPU if there is one, else of the processor and its threads."""
    import torch

    if torch.cuda.is_available():
        return f"one {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"{get_processor()}, {threads} thread{'s' if threads > 1 else ''}"


def get_processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def get_versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed."""
    return {package: found for package in PACKAGES if (found := get_version(package))}


def get_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def get_commit() -> str:
    """Return the commit of the source tree, marked as dirty if files differ from it; empty if this is no such tree."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
