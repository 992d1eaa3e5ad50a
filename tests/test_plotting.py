"""Plots look the same whatever the working folder has for matplotlib, and whatever a run is called."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saccade
from saccade.plotting import matplotlib, plot_defaults
from saccade.train.finish import plot_loss

PROGRAM = (
    "import saccade.plotting as p; print(p.matplotlib.rcParams['text.usetex'], p.matplotlib.rcParams['font.size'])"
)
PLANTED = b"text.usetex: True\ntext.latex.preamble: \\input{secret}\nfont.size: 3\n"


@pytest.mark.parametrize("kind", ["settings", "no text", "pipe"])
def test_settings_in_the_working_folder_are_not_read(tmp_path, kind):
    path = tmp_path / "matplotlibrc"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(PLANTED if kind == "settings" else b"\xff\xfe")
    home = Path(saccade.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(home)},
    )  # fmt: skip
    assert done.stdout.split() == ["False", "10.0"], done.stderr


def test_settings_that_are_there_have_no_effect_and_stay():
    with matplotlib.rc_context({"text.usetex": True, "font.size": 3}):
        with plot_defaults({"svg.hashsalt": "x"}):
            assert not matplotlib.rcParams["text.usetex"] and matplotlib.rcParams["font.size"] == 10
            assert matplotlib.rcParams["svg.hashsalt"] == "x"
        assert matplotlib.rcParams["text.usetex"] and matplotlib.rcParams["font.size"] == 3


@pytest.mark.parametrize("name", ["$\\x$", "a$b", "{$}"])
def test_the_name_of_a_run_is_no_formula(tmp_path, name):
    run = tmp_path / name
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"event": "train", "step": 1, "loss": 2.0}\n')
    plot_loss(run)
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_nobody_else_imports_matplotlib():
    def list_imports(path: Path) -> set[str]:
        found = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
        return found

    home = Path(saccade.__file__).parents[1]
    files = [path for package in ("saccade", "saccade_worlds") for path in (home / package).rglob("*.py")]
    assert {path.name for path in files if "matplotlib" in list_imports(path)} == {"plotting.py"}
