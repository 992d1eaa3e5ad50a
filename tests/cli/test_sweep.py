"""`saccade sweep`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.runs import read_metrics
from saccade.sweep import workers

LR = "train.schedule.lr"
QUICK = (
    "--tiny", "train.steps=8", "train.valid_every=2", "train.report_every=1", "train.save_every=4",
    "train.valid_predictions=0", "train.metric=loss", "data.valid=0.005", "train.batch_tokens=512", "train.device=cpu",
    *(f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("dim=8", "heads=2")),
)  # fmt: skip


@pytest.fixture
def training(monkeypatch):
    """Trainings end at once with a score that follows from the learning rate."""

    class FakeWorker(workers.Worker):
        def train(self, request):
            run = Path(request["run"])
            score = 0.0 if "lr-1e-9" in run.name else 7.5
            run.mkdir(parents=True)
            (run / "recipe.toml").write_text(request["recipe"])
            line = {"event": "valid", "step": 500, "accuracy": score, "best": True, "seconds": 60.0}
            (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            (run / "card.md").write_text("")
            return workers.Outcome("finished")

    monkeypatch.setattr(workers, "Worker", FakeWorker)


def test_the_table_has_the_best_first(cli, training):
    words = ("sweep", "dates", "--tiny", "--grid", f"{LR}=1e-9,1e-3", "--seeds", "2")
    result = cli(*words)
    assert result.code == 0, result.err
    assert [line.split() for line in result.out.splitlines()[:3]] == [
        ["lr", "accuracy", "%,", "mean", "±", "95%", "seeds", "steps", "minutes", "state"],
        ["0.001", "7.50", "±", "0.00", "2", "500", "1.0", "finished"],
        ["1e-09", "0.00", "±", "0.00", "2", "500", "1.0", "finished"],
    ]
    assert "best by validation accuracy: train.schedule.lr=0.001\n" in result.out
    assert "report, picture and all scores: runs/dates-sweep/report.md" in result.out
    assert result.err.startswith("sweep runs/dates-sweep: 4 trials (2 configurations x 2 seeds), 500 steps each, 1 at")
    assert Path("runs/dates-sweep/scores.png").stat().st_size > 5_000
    again = json.loads(cli(*words, "--json").out)
    assert [row["values"] for row in again["rows"]] == [{LR: 0.001}, {LR: 1e-9}]
    assert "dates-sweep-lr-1e-3-seed-2  finished" in cli("runs").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dates"], "a sweep needs keys and their values, such as --grid train.schedule.lr=1e-4,3e-4,1e-3"),
        (["dates", "--grid", "lr"], "--grid lr: expected KEY=VALUE,VALUE,..., such as train.schedule.lr=1e-4,3e-4"),
        (["dates", "--tiny", "--grid", "train.schedule.lrr=1"], "recipe 'dates': train.schedule.lrr: unknown key; did"),
        (["dates", "--tiny", "--grid", f"{LR}="], f"the grid has no values of {LR}"),
        (["dates", "--tiny", "--grid", f"{LR}=1e-3,0"], "recipe 'dates': train.schedule.lr: expected more than 0.0"),
        (["multi30k", "--grid", f"{LR}=1e-3"], "recipe 'multi30k' has no training data"),
        (["dates", "--grid", f"{LR}=1", "fast"], "unexpected argument 'fast'; expected key=value"),
        (["dates", "--grid", f"{LR}=1", "--plugin", "no.py"], "cannot read the plugin 'no.py': no such file"),
    ],
)
def test_mistakes_are_one_line(cli, training, words, message):
    result = cli("sweep", *words)
    assert (result.code, len(result.err.splitlines())) == (2, 1) and message in result.err
    assert not Path("runs").exists()


def test_a_sweep_without_a_finished_trial_is_an_error(cli, monkeypatch):
    monkeypatch.setattr(workers.Worker, "train", lambda self, request: workers.Outcome("failed", "full"))
    result = cli("sweep", "dates", "--tiny", "--grid", f"{LR}=1e-3", "--seeds", "1")
    assert result.code == 2 and "failed: full" in result.out
    assert result.err.endswith("error: no configuration has finished; the logs are in runs/dates-sweep/logs\n")


def start(folder, *words):
    command = [sys.executable, "-m", "saccade", "sweep", "dates", *QUICK, "--grid", f"{LR}=1e-9,1e-3,1e-2", *words]
    environment = {**os.environ, "SACCADE_RUNS": str(folder)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_steps(folder, count):
    """Wait until the runs of a sweep have taken so many steps together."""
    end = time.monotonic() + 300
    while sum(len(read_metrics(path)) for path in folder.glob("*/metrics.jsonl")) < count:
        assert time.monotonic() < end, "the sweep does not train"
        time.sleep(0.05)


def read_scores(folder):
    values = json.loads((folder / "dates-sweep" / "results.json").read_text())
    return [(row["values"], row["scores"], row["state"]) for row in values["rows"]]


@pytest.mark.slow
def test_any_number_of_jobs_kills_and_interrupts_give_the_same_result(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "killed", "interrupted")]
    for folder, jobs in zip(folders, "1222", strict=True):
        process = start(folder, "--seeds", "2", "--jobs", jobs)
        if folder.name == "killed":
            wait_for_steps(folder, 12)
            process.kill()
            process.communicate()
            process = start(folder, "--seeds", "2", "--jobs", jobs)  # its processes may still save their checkpoints
        if folder.name == "interrupted":
            wait_for_steps(folder, 12)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
            assert process.returncode == 130 and errors.splitlines()[-1].startswith("stopped by Ctrl-C; the sweep ")
            process = start(folder, "--seeds", "2", "--jobs", jobs)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    expected = read_scores(folders[0])
    assert [values for values, _, _ in expected] == [{LR: 0.01}, {LR: 0.001}, {LR: 1e-9}]
    assert all(read_scores(folder) == expected for folder in folders[1:])
    weights = [
        {path.parent.name: path.read_bytes() for path in folder.glob("*/model.safetensors")} for folder in folders
    ]
    assert len(weights[0]) == 6 and all(found == weights[0] for found in weights[1:])


@pytest.mark.slow
def test_a_rate_that_cannot_learn_is_pruned(tmp_path):
    _, errors = (process := start(tmp_path, "--seeds", "1", "--jobs", "2", "--prune")).communicate()
    assert process.returncode == 0, errors
    assert [(values[LR], state) for values, _, state in read_scores(tmp_path)] == [
        (0.01, "finished"), (0.001, "pruned"), (1e-9, "pruned"),
    ]  # fmt: skip
