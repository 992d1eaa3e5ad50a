"""Child processes: Python programs that import nothing from the working folder, and how they have ended.

They are started as modules: a fork might hold locks, and a spawn would run the user's script again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECRETS = ("SACCADE_TOKEN",)  # environment variables that no child process gets by itself


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

    In a new session, it does not get the signals of a terminal.
    """
    return subprocess.Popen(
        build_python_command(module, *arguments),
        env=build_python_environment(environment),
        stdin=subprocess.PIPE, stdout=stdout, text=text, encoding="utf-8" if text else None,
        start_new_session=new_session, pipesize=pipe_bytes,
    )  # fmt: skip


def build_python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours; `-P` keeps the working folder off the search path of modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


def build_python_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of such a command: with this saccade, without secrets and without relative search paths.

    An empty entry of PYTHONPATH, as in `PYTHONPATH=$PYTHONPATH:/x`, is the working folder.
    """
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    home = str(Path(__file__).parents[1])
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return {**kept, "PYTHONPATH": os.pathsep.join([home, *paths]), **(changes or {})}


def describe_end(code: int) -> str:
    """How a process has ended, by its return code: "was ended by SIGKILL", "failed with exit code 1"."""
    if code >= 0:
        return f"failed with exit code {code}"
    names = {int(number): number.name for number in signal.Signals}
    hint = "; is there enough memory?" if -code == signal.SIGKILL else ""
    return f"was ended by {names.get(-code, f'signal {-code}')}{hint}"
