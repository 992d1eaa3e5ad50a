"""`train.loggers`: what other programs get, and that they go on where a resumed training goes on."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from saccade.config.load import load, validate
from saccade.errors import SaccadeError
from saccade.runs import read_metrics
from saccade.train import log as log_module
from saccade.train.log import Log
from saccade.train.loggers import logger

STEPS = {"steps": 4, "report_every": 2, "valid_every": 2, "save_every": 2}


class MemoryLogger:
    """Keeps what it gets."""

    def __init__(self, fails_at=None):
        self.lines, self.closed, self.fails_at = [], [], fails_at

    def log(self, step, values):
        if step == self.fails_at:
            raise ConnectionError("server\nis gone")
        self.lines.append((step, values))

    def close(self, *, failed):
        self.closed.append(failed)


@pytest.fixture
def memory(monkeypatch):
    """Open this logger instead of those of a recipe, in addition to one that fails at step 4."""
    loggers, starts = {"first": MemoryLogger(), "second": MemoryLogger(fails_at=4)}, []

    def open_loggers(run, recipe, start_step):
        starts.append(start_step)
        return dict(loggers)

    monkeypatch.setattr(log_module, "open_loggers", open_loggers)
    return loggers, starts


def test_loggers_get_losses_rates_scores_and_the_final_scores(fit, memory, capsys):
    (loggers, starts), run = memory, fit(**STEPS)
    first, second = loggers["first"], loggers["second"]
    names = {step: {name for at, values in first.lines if at == step for name in values} for step in (2, 4)}
    assert {"train/loss", "train/lr", "train/tokens_per_second", "valid/loss", "valid/perplexity"} <= names[2]
    assert "final/loss" in names[4] and "final/loss" not in names[2] and starts == [0]
    last = [line for line in read_metrics(run / "metrics.jsonl") if line["event"] == "valid"][-1]
    assert first.lines[-1][1]["final/loss"] == last["loss"] and first.closed == [False]
    assert max(step for step, _ in second.lines) == 2 and not second.closed
    err = capsys.readouterr().err
    assert err.count("note: logging to second has failed and ends (ConnectionError: server is gone); training g") == 1


def test_a_training_that_fails_is_closed_as_failed(tmp_path, memory):
    with pytest.raises(ZeroDivisionError), Log(tmp_path, total=1, recipe=validate({})):
        raise ZeroDivisionError
    assert memory[0]["first"].closed == [True]


def test_a_logger_that_cannot_be_opened_is_one_line(tmp_path, monkeypatch):
    def fail(*arguments):
        raise ConnectionError("no\nanswer")

    monkeypatch.setattr("saccade.train.loggers.tensorboard.TensorBoardLogger", fail)
    recipe = validate({"train": {"loggers": ["tensorboard"]}})
    with pytest.raises(SaccadeError, match=r"^cannot log to tensorboard \(ConnectionError: no answer\); correct its"):
        logger.open_loggers(tmp_path, recipe, 0)


def test_names_of_loggers(monkeypatch):
    def get_loggers(*overrides):
        return load("dates", overrides=overrides).train.loggers

    assert get_loggers("train.loggers=tensorboard, wandb") == get_loggers('train.loggers=["tensorboard", "wandb"]')
    assert get_loggers() == get_loggers("train.loggers=") == ()
    with pytest.raises(SaccadeError, match="expected 'tensorboard', 'wandb' or 'mlflow', got 'wandbb'; did you mean"):
        get_loggers("train.loggers=wandbb")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in logger.LOGGERS else find(name))
    for name in logger.LOGGERS:
        with pytest.raises(SaccadeError, match=rf"needs the package {name}: pip install 'saccade\[{name}\]'"):
            load("dates", overrides=[f"train.loggers={name}"]).train.check_loggers()


def test_the_old_key_is_read(tmp_path, capsys):
    def read(text):
        (tmp_path / "recipe.toml").write_text(f"[train]\n{text}\n")
        return load(tmp_path / "recipe.toml").train.loggers

    assert read("tensorboard = false") == () and read("tensorboard = true") == ("tensorboard",)
    assert not capsys.readouterr().err  # nobody edits the recipe of a run
    base = ['train.loggers=["wandb"]']
    assert load("dates", overrides=["train.tensorboard=true"]).train.loggers == ("tensorboard",)
    assert "train.tensorboard is now train.loggers" in capsys.readouterr().err
    (tmp_path / "own.toml").write_text('[train]\nloggers = ["wandb", "tensorboard"]\n')
    assert load(tmp_path / "own.toml", overrides=["train.tensorboard=false"]).train.loggers == ("wandb",)
    with pytest.raises(SaccadeError, match="train.loggers is given twice, also under its old name train.tensorboard"):
        load("dates", overrides=[*base, "train.tensorboard=true"])
    with pytest.raises(SaccadeError, match="tensorboard is now the item .* of loggers; expected true or false, got 3"):
        load("dates", overrides=["train.tensorboard=3"])


# ---- the real packages


@pytest.mark.filterwarnings("ignore")  # of mlflow's own code
def test_mlflow_goes_on_in_one_run_and_logs_repeated_steps_once(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    for name in [name for name in os.environ if name.startswith("MLFLOW_")] + ["MLFLOW_DISABLE_TELEMETRY"]:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    recipe, folder = load("dates", overrides=["train.loggers=mlflow"]), tmp_path / "one"
    for start, failed in ((0, True), (4, False)):
        mlflow = logger.open_loggers(folder, recipe, start)["mlflow"]
        for step in range(start, start + 6, 2):  # the first start has saved step 4 and is lost at step 6
            mlflow.log(step + 2, {"train/loss": 10.0 - step - start, "valid/bleu": 1.0})
        mlflow.close(failed=failed)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true" and os.listdir(tmp_path) == ["one"]
    name, status, points, parameters = read_mlflow(folder / "mlflow" / "mlflow.db")
    assert (name, status) == ("one", "FINISHED")
    assert points == [(2, 10.0), (4, 8.0), (6, 6.0), (8, 0.0), (10, -2.0)]
    assert parameters["train.schedule.kind"] == "cosine" and parameters["data.train.0.files.0"] == "embedded:dates"


def read_mlflow(file):
    """Return name, status, steps with their losses, and parameters of the only run in a database."""
    with closing(sqlite3.connect(file)) as database:
        [(name, status)] = database.execute("select name, status from runs").fetchall()
        points = database.execute("select step, value from metrics where key = 'train/loss' order by step").fetchall()
        return name, status, points, dict(database.execute("select key, value from params").fetchall())


# each in a process of its own

QUICK = (
    "--tiny", "train.steps=4", "train.valid_every=2", "train.report_every=2", "train.save_every=2",
    "train.valid_predictions=0", "train.metric=loss", "data.valid=0.005", "train.batch_tokens=512", "train.device=cpu",
    *(f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("dim=8", "heads=2")),
)  # fmt: skip


def train_and_resume(folder, name):
    """Train to step 4, go on to step 8, and return the folder of the logger; no variable names a server."""
    pytest.importorskip(name)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_"))}
    words = [["dates", *QUICK, f"train.loggers={name}", "--run", "one"], ["--resume", "one", "train.steps=8"]]
    for more in words:
        command = [sys.executable, "-m", "saccade", "train", *more]
        result = subprocess.run(command, cwd=folder, env={**kept, "SACCADE_RUNS": str(folder)}, capture_output=True)
        assert result.returncode == 0, result.stderr.decode()
    assert not [path for path in folder.iterdir() if path.name != "one"]  # nothing is written elsewhere
    return folder / "one" / name


@pytest.mark.slow
def test_wandb_is_offline_and_has_one_run(tmp_path):
    folder = train_and_resume(tmp_path, "wandb")
    starts = sorted(folder.glob("offline-run-*/*.wandb"))
    assert {path.stem for path in starts} == {f"run-{(folder / 'saccade-run-id').read_text()}"} and len(starts) == 2
    for path in starts:
        content = path.read_bytes()
        for name in (b"train/loss", b"train/lr", b"valid/loss", b"final/loss", b"warmup_steps"):
            assert name in content, name


@pytest.mark.slow
def test_mlflow_has_a_database_with_one_run(tmp_path):
    folder = train_and_resume(tmp_path, "mlflow")
    name, status, points, parameters = read_mlflow(folder / "mlflow.db")
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        final = database.execute("select count(*) from metrics where key = 'final/loss'").fetchone()
    assert (name, status, [step for step, _ in points], final) == ("one", "FINISHED", [2, 4, 6, 8], (2,))
    assert parameters["train.schedule.kind"] == "cosine"
