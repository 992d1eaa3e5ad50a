"""Start modules of saccade as programs: a fork might hold locks, and a spawn would run the user's script again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECRETS = ("SACCADE_TOKEN",)  # environment variables that no process gets by itself


def start_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    text: bool = True,
    new_session: bool = False,
    pipe_bytes: int = -1,
) -> subprocess.Popen[Any]:
    """Start a module as a program with a pipe as its stdin, and with further environment variables.

    `-P` and the absolute search path keep the working folder out: a file there must not be imported. In a new session,
    it does not get the signals of a terminal.
    """
    home = str(Path(__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    inherited = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env={**inherited, **(environment or {}), "PYTHONPATH": os.pathsep.join([home, *paths])},
        stdin=subprocess.PIPE, stdout=stdout, text=text, encoding="utf-8" if text else None,
        start_new_session=new_session, pipesize=pipe_bytes,
    )  # fmt: skip
