"""All commands: help, version, errors in one line, exit codes, and lazy imports of heavy packages."""

import errno
import os
import subprocess
import sys

import pytest

import saccade
from saccade.cli import exits
from saccade.errors import SaccadeError

VERBS = ("demo", "train", "predict", "evaluate", "compare", "view", "serve", "recipes", "runs")
HEAVY = ("torch", "datasets", "numpy", "pydantic", "tokenizers", "matplotlib", "sacrebleu", "transformers")


def loaded_by(code: str) -> set[str]:
    """Return the heavy packages that a new Python process has imported after running `code`."""
    tail = f"\nimport sys\nprint('|', *[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("|")[2].split())


def test_help_names_every_verb(cli):
    result = cli("--help")
    assert result.code == 0
    assert [verb for verb in VERBS if f" {verb} " not in result.out] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cli, verb):
    result = cli(verb, "--help")
    assert result.code == 0
    assert "Usage: saccade" in result.out


def test_version(cli):
    assert cli("--version").out == f"saccade {saccade.__version__}\n"


def test_an_unknown_verb_is_a_mistake(cli):
    result = cli("trian")
    assert result.code == 2
    assert "Did you mean 'train'?" in result.err


def test_help_loads_nothing_heavy():
    code = "from saccade.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert loaded_by(code) == set()


def test_import_loads_nothing_heavy():
    assert loaded_by("import saccade; saccade.__version__; saccade.SaccadeError") == set()


def test_the_test_would_see_heavy_packages():
    assert loaded_by("import pydantic") == {"pydantic"}


def test_help_answers_in_half_a_second():
    def seconds() -> float:
        """CPU time, since wall time includes tests that run at the same time."""
        before = os.times()
        subprocess.run([sys.executable, "-m", "saccade", "--help"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (SaccadeError("a mistake; do this"), 2, "error: a mistake; do this\n"),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 2, "error: permission denied: 'runs/x'\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: no space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt("stopped; go on with: x"), 130, "stopped; go on with: x\n"),
    ],
)
def test_exceptions_become_a_message_and_an_exit_code(capsys, error, code, message):
    with pytest.raises(SystemExit) as left, exits.report_errors():
        raise error
    assert (left.value.code, capsys.readouterr().err) == (code, message)


def test_a_signal_may_choose_the_exit_code(capsys):
    error = KeyboardInterrupt("stopped")
    error.exit_code = 143
    with pytest.raises(SystemExit) as left, exits.report_errors():
        raise error
    assert left.value.code == 143


def test_unexpected_exceptions_keep_their_traceback():
    with pytest.raises(ZeroDivisionError), exits.report_errors():
        raise ZeroDivisionError
    with pytest.raises(OSError, match="Bad file"), exits.report_errors():
        raise OSError(errno.EBADF, "Bad file descriptor")


def test_a_closed_pipe_is_no_error():
    code = "from saccade.cli.exits import report_errors\nwith report_errors():\n    print('x' * 1000000, flush=True)"
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writer.stdout.read(1)
    writer.stdout.close()
    assert (writer.wait(), writer.stderr.read()) == (0, b"")
    writer.stderr.close()
