"""Paths of data files: of this machine, or URLs of file systems that fsspec knows (s3://, hf://, https://, memory://)."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any, cast

from saccade.errors import SaccadeError
from saccade.extras import get_install_command

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.+")
GLOB = re.compile(r"[*?\[]")


def is_url(name: object) -> bool:
    return URL.fullmatch(str(name)) is not None


def to_path(name: str) -> Path:
    """Return the path that a name stands for; a URL as one of universal_pathlib, which behaves like a pathlib.Path."""
    if not is_url(name):
        return Path(name)
    try:
        from upath import UPath
    except ImportError:
        raise SaccadeError(
            f"{name} is a URL, for which a package is missing; install it with: {get_install_command('urls')}"
        ) from None
    try:
        path = UPath(name)
        path.fs  # noqa: B018  # finds the package of the protocol
    except (ImportError, ValueError) as error:
        raise SaccadeError(f"{name} cannot be opened ({str(error).splitlines()[0]})") from None
    return cast(Path, path)


def is_glob(name: str) -> bool:
    """Whether a name is a pattern of files, such as `shards/*.parquet`, and not itself the name of a file."""
    return GLOB.search(name) is not None and (is_url(name) or not Path(name).exists())


def find_glob(pattern: str) -> list[Path]:
    """Return the files that a pattern names, in the order of their names; `**` stands for any folders."""
    if is_url(pattern):
        base: Any = to_path(pattern)
        with_protocol = [base.fs.unstrip_protocol(name) for name in base.fs.glob(base.path)]
        found = [to_path(name) for name in with_protocol]
    else:
        found = [Path(name) for name in glob.glob(pattern, recursive=True)]
    files = sorted(path for path in found if path.is_file())
    if not files:
        raise SaccadeError(f"no file is called {pattern}; expected a pattern of existing files, such as shards/*.jsonl")
    return files


def find_in_folder(folder: Path) -> list[Path]:
    """Return all files of a folder and of its subfolders, in the order of their names."""
    if not is_url(folder):
        return sorted(path for path in folder.rglob("*") if path.is_file())
    base: Any = folder
    return sorted(to_path(base.fs.unstrip_protocol(name)) for name in base.fs.find(base.path))
