"""`saccade train --processes N`, and what processes of torchrun report."""

import os
from pathlib import Path

import pytest

import saccade
from saccade.cli import exits, processes
from saccade.errors import HungProcess, LocalError, ProcessLost, SaccadeError


def test_the_same_command_runs_in_each_process(monkeypatch):
    """torchrun must not take options of ours, such as --run, for its own."""
    from torch.distributed import run

    started, environment = [], {**os.environ, "PYTHONPATH": ":relative"}
    environment.pop("TORCHELASTIC_RUN_ID", None)
    monkeypatch.setattr(run, "run", started.append)
    monkeypatch.setattr(os, "environ", environment)

    processes.start_processes(["train", "gpt2", "--processes", "3", "--run", "big", "train.steps=7"], 3)

    [options] = started
    assert (options.module, options.training_script) == (True, "saccade")
    assert options.training_script_args == ["train", "gpt2", "--run", "big", "train.steps=7"]
    assert (options.nproc_per_node, options.max_restarts) == ("3", processes.MAX_RESTARTS)
    assert options.rdzv_endpoint.startswith("127.0.0.1:")
    assert environment["PYTHONSAFEPATH"] == "1" and environment["PYTHONPATH"] == str(Path(saccade.__file__).parents[1])


def test_the_option_is_dropped_in_both_forms():
    assert processes.drop_option(["train", "--processes=4", "gpt2", "--tiny"]) == ["train", "gpt2", "--tiny"]
    assert processes.drop_option(["train", "gpt2", "--tiny", "--processes", "4"]) == ["train", "gpt2", "--tiny"]


def test_processes_inside_torchrun_are_refused(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")

    with pytest.raises(SaccadeError, match="--processes starts processes itself, but torchrun started this one; leave"):
        processes.start_processes(["train"], 2)


def test_processes_must_be_at_least_one(cli):
    result = cli("train", "gpt2", "--processes", 0)

    assert result.code == 2
    assert result.err == "error: invalid value for '--processes': Input should be greater than or equal to 1\n"


@pytest.fixture
def in_torchrun(monkeypatch, tmp_path):
    """Set what torchrun sets for a process; returns a function that does it for a rank and a restart."""

    def enter(rank, attempt=0):
        monkeypatch.setenv("RANK", str(rank))
        folder = tmp_path / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))

    return enter


def report(error):
    with pytest.raises(SystemExit) as caught, exits.report_errors():
        raise error
    return caught.value.code


def test_a_mistake_is_reported_by_rank_0_alone_and_not_again_after_a_restart(in_torchrun, capsys, monkeypatch):
    monkeypatch.setattr(exits, "REPORT_SECONDS", 0.1)
    in_torchrun(1)
    assert report(SaccadeError("wrong key")) == 2 and capsys.readouterr().err == ""
    assert not exits.get_mark().exists()  # rank 0 has still to report it
    in_torchrun(0)
    assert report(SaccadeError("wrong key")) == 2 and capsys.readouterr().err == "error: wrong key\n"
    in_torchrun(0, attempt=1)
    with pytest.raises(SystemExit) as caught, exits.report_errors():
        raise AssertionError("the command runs again")
    assert caught.value.code == 2 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "said", "runs_again"),
    [
        (LocalError("no GPU here"), "error: no GPU here\n", False),
        (ProcessLost("one is lost"), "", True),
        (HungProcess("rank 0 hangs"), "error: rank 0 hangs\n", True),
    ],
)
def test_errors_of_one_process_are_reported_by_it_and_lost_ones_may_come_back(
    error, said, runs_again, in_torchrun, capsys, monkeypatch
):
    monkeypatch.setattr(exits, "REPORT_SECONDS", 0.1)
    in_torchrun(1)

    assert report(error) == 2 and capsys.readouterr().err == said
    assert exits.get_mark().exists() != runs_again


def test_one_process_has_no_mark(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)

    assert exits.get_mark() is None
