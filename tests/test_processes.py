"""Child processes of ours import nothing from the working folder, get no secrets, and their end is named."""

import ast
import os
import signal
import subprocess
from pathlib import Path

import pytest

from saccade import processes

ROOT = Path(__file__).parent.parent
FOLDERS = ("saccade", "saccade_worlds", "benchmarks", "scripts")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def is_python(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"


def test_no_command_of_ours_has_the_working_folder_on_its_search_path():
    """`-m` and `-c` put it first, unless -P is given; a program that is a file does not."""
    found = 0
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            words = node.elts if isinstance(node, ast.List) else node.args if isinstance(node, ast.Call) else []
            if any(map(is_python, words)):
                texts = [word.value for word in words if isinstance(word, ast.Constant)]
                found += 1
                assert not {"-m", "-c"} & set(texts) or "-P" in texts, f"{path}:{node.lineno}"
    assert found >= 8, "the test finds the commands"


def test_processes_that_are_spawned_do_not_look_there_either():
    """multiprocessing starts `python -c`, too."""
    spawning = [path for path in FILES if 'get_context("spawn")' in path.read_text("utf-8")]
    assert spawning
    assert all('os.environ["PYTHONSAFEPATH"] = "1"' in path.read_text("utf-8") for path in spawning)


def test_a_module_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "tomllib.py").write_text("open('was_run', 'w')", encoding="utf-8")
    for path in ("", ".", f":{tmp_path.name}"):
        monkeypatch.setenv("PYTHONPATH", path)
        command = processes.build_python_command("saccade", "recipes", "show", "dates")
        done = subprocess.run(
            command, cwd=tmp_path, env=processes.build_python_environment(), capture_output=True, text=True
        )
        assert (done.returncode, "Vaswani" in done.stdout) == (0, True)
    assert not (tmp_path / "was_run").exists()


def test_the_environment_has_no_token_and_keeps_absolute_paths(monkeypatch, tmp_path):
    monkeypatch.setenv("SACCADE_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path), "relative", "."]))
    environment = processes.build_python_environment({"OMP_NUM_THREADS": "1"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(tmp_path)]
    assert "SACCADE_TOKEN" not in environment
    assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "failed with exit code 1"),
        (-signal.SIGKILL, "was ended by SIGKILL; is there enough memory?"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-99, "was ended by signal 99"),
    ],
)
def test_the_end_of_a_process_is_named(code, text):
    assert processes.describe_end(code) == text
