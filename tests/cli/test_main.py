"""All commands: help, version, errors in one line, exit codes, and lazy imports of heavy packages."""

import errno
import io
import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

import saccade
import saccade.cli
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


@pytest.mark.parametrize(
    "command, expected",
    [
        ("trian", "error: no such command 'trian'; did you mean 'train'? (commands of saccade: demo, train, "),
        ("recipes nope", "error: no such command 'nope' (commands of saccade recipes: list, show, copy)"),
        ("train dates --lr 1", "error: no such option: --lr; settings are given as KEY=VALUE: train.schedule.lr=..."),
        ("train --batch-size=4", "error: no such option: --batch-size; settings are given as KEY=VALUE: "),
        ("predict r x --length-penalty 1", "settings are given as KEY=VALUE: length_penalty=..."),
        ("train dates --ru r", "no such option: --ru (Possible options: --resume, --run); expected saccade train ["),
        ("runs --lr 3", "--lr (Possible options: --help); expected saccade runs [OPTIONS]; saccade runs --help lists"),
        ("predict", "error: missing argument 'RUN'; expected saccade predict [OPTIONS] {RUN}"),
        ("explain a b", "error: got unexpected extra argument(s) (b); expected saccade explain [OPTIONS] {KEY}"),
        ("predict r x --beam 0", "error: invalid value for '--beam': "),
        ("predict r --n-best", "error: option '--n-best' requires an argument"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(cli, command, expected):
    result = cli(*command.split())
    assert result.code == 2
    assert result.out == ""
    assert expected in result.err
    assert result.err.count("\n") == 1


def test_a_group_alone_shows_its_commands(cli):
    result = cli("lectures")
    assert "Usage: saccade lectures" in result.out + result.err
    assert "error" not in result.err


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
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300),
            2,
            f"error: file name too long: '{'a' * 300}'\n",
        ),
        (OSError(errno.ELOOP, "Too many levels", b"x"), 2, "error: too many levels: 'x'\n"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/b"), 2, "error: not a directory: 'a/b'\n"),
        (SaccadeError("a\x1b[2Jb"), 2, "error: a\\x1b[2Jb\n"),
        (SaccadeError("x" * 2000), 2, f"error: {'x' * 659} ... {'x' * 250}\n"),
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


def run_in_shell(command: str, folder: object) -> tuple[int, str]:
    """Return exit code and stderr of a command in a shell, in which `saccade` is this one."""
    saccade = f"{shlex.quote(sys.executable)} -m saccade"
    done = subprocess.run(
        ["bash", "-c", command.replace("saccade", saccade)], capture_output=True, text=True, cwd=folder
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("saccade --version >&-", 2, "error: standard output is closed; open it, or give a file instead\n"),
        ("saccade recipes >&-", 2, "error: standard output is closed; open it, or give a file instead\n"),
        ("saccade --version > /dev/full", 2, "error: no space left on device\n"),
        ("saccade recipes copy dates d.toml 2>&- <&- > listed; grep -c step d.toml > /dev/null", 0, ""),
        ("saccade runs 2>&- >&- <&-", 2, ""),
        (
            "SACCADE_RUNS=/dev/null/x saccade recipes copy dates /dev/null/x.toml",
            2,
            "error: not a directory: '/dev/nul",
        ),
        ("saccade predict $'\\xff' x", 2, "error: argument 2 is not valid UTF-8: '\\udcff'; is it a file name? renam"),
    ],
)
def test_streams_and_paths_that_cannot_be_used_give_one_line(tmp_path, command, code, message):
    found, error = run_in_shell(command, tmp_path)
    assert (found, error.count("\n")) == (code, 1 if message else 0)
    assert error.startswith(message)


LONG = "a" * 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", LONG], "error: file name too long: '"),
        (["import", "loop"], "error: 'loop' is not a local folder, and the Hub has no model of that name that can be"),
        (["predict", LONG, "x"], "error: file name too long: '"),
        (["train", LONG], "error: file name too long: '"),
        (["train", "dates", "--tiny", "--run", LONG], "error: cannot create the folder 'runs/aaa"),
        (["train", "dates", "--tiny", "--run", "loop/x"], "error: cannot create the folder 'loop/x': Too many levels"),
        (["train", "loop.toml"], "error: recipe file 'loop.toml' not found; `saccade recipes` lists the names that"),
        (["evaluate", "--hyp", "file/x", "--ref", "file/x"], "error: file/x not found: there is no folder file\n"),
        (["recipes", "copy", "dates", "file/x.toml"], "error: not a directory: 'file/x.toml'\n"),
        (["watch", "file/x"], "error: 'file/x' is not a run: expected a folder with recipe.toml"),
    ],
)
def test_a_path_that_cannot_be_used_gives_one_line(cli, tmp_path, words, message):
    for name in ("loop", "loop.toml"):
        (tmp_path / name).symlink_to(name)
    (tmp_path / "file").write_text("")
    result = cli(*words)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith(message)


def test_a_closed_standard_input_is_an_error_where_it_is_read(monkeypatch):
    from saccade.data.sources.pairs import read_lines

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(exits.ClosedStream("standard input"))))
    with pytest.raises(SaccadeError, match="standard input is closed; open it, or give a file instead"):
        next(iter(read_lines("-")))


@pytest.mark.parametrize("words", [["recipes"], ["lectures", "list"], ["explain", "train.schedule.lr"]])
def test_light_verbs_load_no_torch(words):
    code = f"from saccade.cli import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass"
    assert "torch" not in loaded_by(code)


def test_a_prediction_imports_only_what_it_needs_and_exits_without_a_search_for_garbage(run):
    """Each of these takes a tenth of a second or more, and so does a collection among all objects of torch."""
    unneeded = ("sacrebleu", "triton", "rich.progress", "pandas", "datasets", "transformers", "torch._dynamo")
    code = f"""
import gc, sys
from saccade.cli import main
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        print("collected")
try:
    main(["predict", {str(run)!r}, "3 May 1999"])
except SystemExit as end:
    print(end.code, gc.isenabled(), [name for name in {unneeded!r} if name in sys.modules])
Cycle()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["0 True []"], done.stderr


def test_help_has_no_names_of_types_and_loses_no_word(cli):
    """Of any command: `--tiny` takes no <bool>, and a word in brackets is not taken for markup."""
    app = typer.main.get_command(saccade.cli.app)
    for name, command in app.commands.items():
        for words in [[name], *([name, inner] for inner in getattr(command, "commands", ()))]:
            out = cli(*words, "--help").out
            assert not re.search(r"<(list|bool|str|int|float)\b", out), words
            assert not re.search(r" \.(\s|│)", out), words
