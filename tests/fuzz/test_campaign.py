"""The fuzzer notices what it is there to notice, and draws the same cases from the same seed."""

import os
import signal
import time
from pathlib import Path
from random import Random

import campaign
import execute
import mutate
import pytest
from cases import SEEDS, WEIGHTS, Case, Generator
from execute import Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

COMMANDS = {
    "passes": lambda: Verdict(),
    "raises": lambda: Verdict("ValueError in saccade/x.py:f"),
    "crashes": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "leaves": lambda: os._exit(3),
    "computes": lambda: spin(60),
    "waits": lambda: time.sleep(60),
    "allocates": lambda: (bytearray(b"x") * 600_000_000, time.sleep(60)),
}


def spin(seconds: float) -> None:
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


class Commands:
    """Stands for the runner of commands: each does what its name says."""

    def __init__(self, world: Path, copy: Path) -> None: ...

    def redirect_errors(self, path: Path) -> None: ...

    def run(self, case: Case) -> Verdict:
        return COMMANDS[case.argv[0]]()


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(campaign, "Runner", Commands)
    monkeypatch.setattr(campaign, "MAX_SECONDS", 1.0)  # of the processor: touching 600 MB can take half of it
    monkeypatch.setattr(campaign, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(campaign, "MAX_WAITING_SECONDS", 3.0)
    monkeypatch.setattr(campaign, "MAX_BYTES", execute.read_memory() + 200_000_000)
    monkeypatch.setattr(campaign, "KILL_BYTES", execute.read_memory() + 300_000_000)

    def run_all(*names: str) -> list[str]:
        found: list[str] = []
        cases = (Case([name]) for name in names)
        campaign.run_cases(tmp_path / "world", cases, lambda case, verdict, memory: found.append(verdict.fault))
        return found

    return run_all


def test_each_kind_of_end_is_noticed_and_the_next_case_is_run(run):
    faults = run("passes", "raises", "crashes", "passes", "leaves", "computes", "waits", "allocates", "passes")
    assert faults == [
        "",
        "ValueError in saccade/x.py:f",
        "crashes: signal SIGBUS",
        "",
        "leaves: left with 3 from inside",
        "computes: killed after 1 s",
        "waits: killed after 1 s",
        "allocates: more than 2 GB",
        "",
    ]


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run a function in place of the command line."""
    monkeypatch.chdir(tmp_path)

    def judge(function, *argv: str) -> Verdict:
        monkeypatch.setattr("saccade.cli.main", lambda arguments: function())
        return execute.run_command(Case([*argv] or ["predict"]))

    return judge


def fail(error: BaseException) -> None:
    raise error


def test_an_exception_is_a_fault_and_a_refusal_is_none(command):
    assert command(lambda: fail(ZeroDivisionError())).fault == "ZeroDivisionError in outside"
    assert command(lambda: fail(SystemExit(2))).fault == ""
    assert command(lambda: fail(SystemExit(70))).fault == "exit code 70"
    assert command(lambda: print("\udcff")).fault == "UnicodeEncodeError in outside"


def test_a_silent_command_that_takes_too_long_is_a_fault(command, monkeypatch):
    import sys

    monkeypatch.setattr(execute, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(execute, "LONG_SECONDS", 0.1)
    assert command(lambda: spin(5)).fault == "predict: more than 0 s"
    assert command(lambda: spin(5), "train").fault == "train: more than 0 s"
    assert command(lambda: (print("step 1", file=sys.stderr), spin(5)), "train").fault == ""


def test_a_call_that_cannot_be_interrupted_is_a_fault_only_if_nothing_was_said_before(command, monkeypatch):
    import sys

    monkeypatch.setattr(execute, "MAX_SECONDS", 0.1)
    monkeypatch.setattr(execute, "LONG_SECONDS", 0.02)

    def add_up():
        return sum(range(20_000_000))  # signals wait for its end

    spoken = command(lambda: (print("step 1", file=sys.stderr), add_up()), "train")
    assert spoken.fault == "" and spoken.silent < 0.1 < spoken.seconds
    late = command(lambda: (add_up(), print("step 1", file=sys.stderr)), "train")
    assert late.fault == "train: more than 0 s" and late.silent > 0.1


def test_a_long_line_of_error_is_one_line(command):
    import sys

    from damage import find_fault

    def refuse():
        print("error: " + "x" * 3000, file=sys.stderr)
        raise SystemExit(2)

    assert find_fault(Case(["export"]), command(refuse, "export"), 0) == ""


def test_a_traceback_that_a_thread_prints_is_a_fault(command):
    import sys

    text = "Traceback (most recent call last):\n  x\nKeyError: 1"
    assert command(lambda: print(text, file=sys.stderr)).fault == "traceback on stderr: KeyError: 1"


def test_what_a_case_changes_is_put_back(tmp_path, monkeypatch):
    world, copy = tmp_path / "world", tmp_path / "copy"
    (world / "runs").mkdir(parents=True)
    for name in ("a", "runs/b", "runs/c"):
        (world / name).write_text(name)
    (world / "locked").mkdir()
    runner = execute.Runner(world, copy)

    def damage(case: Case) -> Verdict:
        (copy / "a").write_text("other")
        (copy / "runs/b").unlink()
        (copy / "new/deep").mkdir(parents=True)
        return Verdict()

    monkeypatch.setattr(execute, "run_command", damage)
    monkeypatch.chdir(tmp_path)
    runner.run(Case(["x"], files={"runs/c": None, "runs/d": b"1"}))
    assert {str(path.relative_to(copy)) for path in copy.rglob("*")} == {
        "a",
        "runs",
        "runs/b",
        "runs/c",
        "locked",
    }
    assert [(copy / name).read_text() for name in ("a", "runs/b", "runs/c")] == ["a", "runs/b", "runs/c"]


def test_cases_depend_on_the_seed_alone(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/recipe.toml").write_text("[train]\nsteps = 3\n")
    generator = Generator(tmp_path, ["runs/recipe.toml"])
    drawn = [[generator.draw(Random(f"{seed}-{n}")) for n in range(60)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all("\0" not in word for case in drawn[0] for word in case.argv)
    chosen = Generator(tmp_path, ["runs/recipe.toml"], ["train", "plan"])
    assert {chosen.draw(Random(n)).argv[0] for n in range(60)} == {"train", "plan"}


def test_every_command_is_fuzzed():
    import typer

    from saccade.cli import app

    assert set(SEEDS) == set(WEIGHTS) == set(typer.main.get_command(app).commands)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.none() | st.binary(max_size=9), max_size=2),
    st.binary(max_size=9),
    st.text(max_size=5),
)
def test_a_case_is_read_as_it_was_written(argv, files, stdin, found):
    case = Case(argv, files, stdin, found)
    assert Case.from_json(case.to_json()) == case


@settings(max_examples=50, deadline=None)
@given(st.integers(), st.binary(max_size=40), st.sampled_from(["a.json", "a.toml", "a.jsonl", "a.bin"]))
def test_any_file_can_be_mutated(seed, content, name):
    assert mutate.mutate_file(Random(seed), name, content) == mutate.mutate_file(Random(seed), name, content)
