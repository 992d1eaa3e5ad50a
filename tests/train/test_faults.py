"""Processes that die, hang, diverge or are started again; a disk that is too small."""

import os
import shutil
from pathlib import Path

import layouts
import pytest
import small

from saccade.errors import HungProcess, ProcessLost, SaccadeError
from saccade.train import folder
from saccade.train.distributed import faults
from saccade.train.distributed.ranks import Ranks


@pytest.fixture(scope="module")
def failed(processes, tmp_path_factory):
    """What each of two processes says when rank 1 computes a NaN, dies, or hangs."""
    where, found = tmp_path_factory.mktemp("faults"), {}
    plain = {"valid_predictions": 0, "ema": 0.0}
    for fault in ("nan", "kill", "hang"):
        more = {"parallel": {"timeout": 4.0}} if fault == "hang" else {}
        group = layouts.Group(processes, where)
        result = group.run([("ddp-2", fault, {**plain, **more, "fault": (fault, 1, 1)})], timeout=90)
        found[fault] = {rank: text for (_, rank), text in result.items()}
    return found


def test_a_loss_that_is_not_a_number_in_one_process_stops_all_with_one_message(failed):
    said = failed["nan"]

    assert said[0] == said[1] and said[0].startswith("Diverged: the loss is no longer a finite number at step 2")


def test_a_killed_process_is_noticed_by_the_others(failed):
    [text] = failed["kill"].values()

    assert text.startswith("ProcessLost: a process of the 2 has ended or was killed; torchrun --max-restarts")
    assert "--resume" in text


def test_a_process_that_hangs_is_named_after_the_timeout(failed):
    [text] = failed["hang"].values()

    assert text.startswith("HungProcess: the processes waited 4 s (train.parallel.timeout) for rank 1; see what")


def test_other_errors_keep_their_traceback():
    with (
        pytest.raises(RuntimeError, match="Connection closed"),
        faults.report_lost_processes(Ranks(), timeout=1, resume="saccade"),
    ):
        raise RuntimeError("gloo: Connection closed by peer")  # of one process: no other one can be lost
    with (
        pytest.raises(RuntimeError, match="shapes"),
        faults.report_lost_processes(Ranks(0, 2), timeout=1, resume="saccade"),
    ):
        raise RuntimeError("shapes differ")
    assert issubclass(HungProcess, ProcessLost) and issubclass(ProcessLost, SaccadeError)


# ---- started again by torchrun


@pytest.fixture
def restarted(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")


def begin(path, launch="job-7"):
    path.mkdir(parents=True)
    (path / ".launch").write_text(launch)
    return path


def test_a_restart_finds_the_run_that_it_began(runs, restarted, tmp_path):
    begin(runs / "copy-1", launch="job-6")
    own = begin(runs / "copy-2")

    assert faults.find_restarted_run(None) == own and not faults.is_begun(own)
    assert faults.find_restarted_run(runs / "copy-1") is None
    assert faults.find_restarted_run(begin(tmp_path / "named")) == tmp_path / "named"


def test_a_first_start_finds_nothing(runs, restarted, monkeypatch):
    begin(runs / "copy-2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")

    assert faults.find_restarted_run(None) is None
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")  # the process of another machine may have ended
    assert faults.find_restarted_run(None) == runs / "copy-2"


def test_torchrun_without_an_id_is_known_by_its_process(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")

    assert faults.get_launch_id().endswith(f" {os.getppid()}")


def test_a_restart_goes_on_with_its_run_and_starts_anew_without_a_recipe(runs, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    settings = {"steps": 4, "valid_every": 4, "save_every": 2, "accumulate": 2}
    begin(runs / "copy-1")  # killed before it wrote its recipe
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (runs / "copy-1/.training").touch()
    small.api.train(small.small(**settings))
    assert sorted(path.name for path in runs.iterdir()) == ["copy-1"]
    shutil.rmtree(runs / "copy-1/checkpoints/step-4")
    (runs / "copy-1/card.md").unlink()

    small.api.train(small.small(**settings))

    assert sorted(path.name for path in runs.iterdir()) == ["copy-1"]
    assert (runs / "copy-1/checkpoints/step-4").is_dir() and (runs / "copy-1/card.md").exists()


def test_a_restart_before_the_first_checkpoint_says_that_it_begins_anew(runs, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    settings = {"steps": 2, "valid_every": 2, "save_every": 2, "accumulate": 2}
    small.api.train(small.small(**settings), run="killed")
    shutil.rmtree(runs / "killed/checkpoints/step-2")
    (runs / "killed/card.md").unlink()
    losses = (runs / "killed/metrics.jsonl").read_text().count("loss")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    capsys.readouterr()

    small.api.train(small.small(**settings), run="killed")

    text = capsys.readouterr().err
    assert text.count("has no checkpoint yet and begins anew") == 1 and "resumes from" not in text
    assert (runs / "killed/metrics.jsonl").read_text().count("loss") == losses


# ---- disk


def test_a_run_whose_checkpoints_cannot_fit_is_refused_before_it_starts(fit, tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: free)

    with pytest.raises(
        SaccadeError, match=r"4 checkpoints of this run take .* GB .* has 0\.0 GB left; free some, lower"
    ):
        fit()
    assert not Path(tmp_path, "run").exists()
