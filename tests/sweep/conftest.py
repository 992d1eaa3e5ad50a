"""Sweeps whose trainings take no time: formulas instead of models, or models of some hundred parameters."""

import json
from pathlib import Path
from typing import Any

import pytest

from saccade.bounds import parse_toml
from saccade.config.load import validate
from saccade.config.plugins import Kinds
from saccade.sweep import report, workers
from saccade.sweep.worker import train_trial

VALUES = {
    "name": "copy",
    "data": {
        "train": [{"files": ["embedded:copy"], "examples": 200}],
        "valid": [{"files": ["embedded:copy-heldout"], "examples": 20}],
    },
    "tokenizer": {"kind": "characters"},
    **{part: {"stack": {"layers": 1, "dim": 8, "heads": 2, "ff": 8}} for part in ("reader", "writer")},
    "train": {
        "steps": 8, "batch_tokens": 128, "report_every": 2, "valid_every": 2, "save_every": 4, "valid_predictions": 0,
        "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 1}, "device": "cpu",
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACCADE_RUNS", raising=False)
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    """Pictures take longer than all else; one test draws them."""
    monkeypatch.setattr(report, "draw_scores", lambda sweep, path: None)


@pytest.fixture
def recipe(folder) -> Any:
    return validate(VALUES)


@pytest.fixture
def in_process(monkeypatch):
    """Train in this process; returns the names of the runs and the steps at which they were to pause."""
    requests = []

    class LocalWorker(workers.Worker):
        def train(self, request):
            requests.append((Path(request["run"]).name, request["until"]))
            return workers.Outcome(**train_trial(request, Kinds()))

    monkeypatch.setattr(workers, "Worker", LocalWorker)
    return requests


@pytest.fixture
def by_formula(monkeypatch):
    """Replace training by a formula: `formula(recipe, step)` is the validation loss; returns the requests."""

    def install(formula):
        requests = []

        class FormulaWorker(workers.Worker):
            def train(self, request):
                run, until = Path(request["run"]), request["until"]
                requests.append((run.name, until))
                recipe = validate(parse_toml(request["recipe"], "recipe"))
                steps = until or recipe.train.steps
                lines, best = [], float("inf")
                for step in range(2, steps + 1, 2):
                    loss = formula(recipe, step)
                    lines.append({"event": "valid", "step": step, "loss": loss, "best": loss < best, "seconds": step})
                    best = min(best, loss)
                run.mkdir(parents=True, exist_ok=True)
                (run / "recipe.toml").write_text(request["recipe"])
                (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
                if until is None:
                    (run / "card.md").write_text("")
                return workers.Outcome("finished" if until is None else "paused")

        monkeypatch.setattr(workers, "Worker", FormulaWorker)
        return requests

    return install
