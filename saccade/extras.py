"""Extras: packages that only some commands need, and the command that installs them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # a checkout, or the folder of all installed packages


def get_install_command(extra: str) -> str:
    """Return the pip command that adds an extra here: to a checkout, or to an installed wheel."""
    if not (ROOT / "pyproject.toml").is_file():
        return f"{_get_pip()} install 'saccade[{extra}]'"
    return f"{_get_pip()} install -e '{_shorten(ROOT)}[{extra}]'"


def _get_pip() -> str:
    """Return `pip` if that is the one of this environment, otherwise this Python with its module pip."""
    python = Path(sys.executable)
    found = shutil.which("pip")
    return "pip" if found and Path(found).parent == python.parent else f"{_shorten(python)} -m pip"


def _shorten(path: Path) -> str:
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
