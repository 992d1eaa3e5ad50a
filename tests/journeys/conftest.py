"""Journeys: what a user does one after the other, with documented commands, from a built wheel in a new environment.

The environment has the packages of the one that runs the tests, but saccade itself is the wheel; the working folder is
elsewhere and empty.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
REFERENCE = (ROOT / "docs" / "cli.md").read_text("utf-8")


class Place:
    """A working folder, and an environment in whose bin the commands are."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder, self.commands = folder, commands
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SACCADE_"))},
            "OMP_NUM_THREADS": "1",
            "SACCADE_DEVICE": "cpu",
            "SACCADE_CACHE": os.environ["SACCADE_CACHE"],
        }

    def run(self, line: str, *, code: int = 0) -> str:
        """Run a command as it is typed; return stdout, or stderr where a failure is expected."""
        done = subprocess.run(self.split(line), cwd=self.folder, env=self.variables, capture_output=True, text=True)
        assert done.returncode == code, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stderr if code else done.stdout

    def run_json(self, line: str) -> Any:
        return json.loads(self.run(f"{line} --json"))

    def split(self, line: str) -> list[str]:
        words = shlex.split(line)
        if words[0] == "saccade":
            check_documented(words)
        return [str(self.commands / words[0]), *words[1:]]

    def run_python(self, program: str) -> str:
        (self.folder / "program.py").write_text(program, encoding="utf-8")
        return self.run("python program.py")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8")

    def list_files(self, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(pattern))

    @contextmanager
    def serve(self, line: str) -> Iterator[str]:
        """Serve on a free port while the block runs; yield the address."""
        with subprocess.Popen(
            self.split(f"{line} --port 0"), cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                address = re.search(r"at (http://\S+)", process.stdout.readline())
                assert address
                yield address[1]
            finally:
                process.terminate()
        assert process.returncode == 0

    @staticmethod
    def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def check_documented(words: list[str]) -> None:
    """Check that a command, and each of its options, is in docs/cli.md."""
    command = " ".join(words[:3]) if f"## {' '.join(words[:3])}\n" in REFERENCE else " ".join(words[:2])
    _, found, text = REFERENCE.partition(f"## {command}\n")
    assert found or words[1].startswith("--"), f"{command} is not documented"
    section = text.partition("\n## ")[0] if found else REFERENCE
    missing = [word for word in words if re.match(r"--[a-z]", word) and f"{word} " not in section]
    assert not missing, f"{command}: {missing} not documented"


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin of a new environment into which a wheel of this tree is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    has_pip = find_spec("pip") is not None
    venv.create(folder / "venv", with_pip=not has_pip, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
    quiet = ["--disable-pip-version-check", "--quiet", "--no-deps"]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("saccade-*.whl")
    subprocess.run([*pip, "install", *quiet, "--no-index", wheel], check=True)
    here = sysconfig.get_path("purelib")
    [packages] = folder.glob("venv/lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{here}\n", encoding="utf-8")  # its own .pth files are not followed
    return folder / "venv" / "bin"


@pytest.fixture(scope="module")
def place(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A new working folder for the journey of a module."""
    return Place(tmp_path_factory.mktemp("journey"), commands)
