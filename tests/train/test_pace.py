"""The speed of the first steps: the expected time, and `train.minutes` as a number of steps."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import small
import torch

import saccade
from saccade.data.prepare import prepare
from saccade.train import pace, schedule
from saccade.train.log import format_banner
from saccade.train.pace import Pace, format_time

COSINE = {"kind": "cosine", "lr": 0.01, "warmup_steps": 2, "min_lr": 0.0}
FAST = {
    "steps": "none",
    "valid_every": 10_000,
    "save_every": 10_000,
    "report_every": 1,
    "accumulate": 1,
    "schedule": COSINE,
}


class Clock:
    """A clock that a test moves; every step takes `step_seconds`."""

    def __init__(self, monkeypatch, step_seconds: float, first: float = 0.0) -> None:
        self.now, self.step_seconds, self.first = 1000.0, step_seconds, first
        monkeypatch.setattr(pace.time, "perf_counter", lambda: self.now)
        step = small.loop.optimizer_step

        def timed_step(s):
            step(s)
            assert s.progress.step < 200, "training does not end"
            self.now += self.step_seconds + (self.first if s.progress.step == 1 else 0.0)

        monkeypatch.setattr(small.loop, "optimizer_step", timed_step)


def progress(run, step):
    return json.loads((run / f"checkpoints/step-{step}/state.json").read_text())["progress"]


def last_step(run):
    return max(small.checkpoint.list_steps(run / "checkpoints"))


def test_minutes_become_steps_and_the_schedule_ends_with_them(tmp_path, monkeypatch, capfd):
    """2 s a step and 2 minutes: 60 steps; a first step that takes 7 s more costs 3 steps, not half of them."""
    Clock(monkeypatch, 2.0, first=7.0)
    run = tmp_path / "run"
    saccade.train(small.small(**FAST, minutes=2.0), run=run)
    assert last_step(run) == 56
    assert progress(run, 56)["planned_steps"] == 56 and progress(run, 56)["planned_minutes"] == 2.0
    rates = [line["lr"] for line in small.read_metrics(run) if line["event"] == "train"]
    assert rates[2] == rates[5] == 0.01 and rates[-1] == pytest.approx(0.0, abs=1e-9)
    assert rates[40] == pytest.approx(schedule.cosine_lr(41, lr=0.01, floor=0.0, steps=2, total=56))
    assert "56 steps fit into train.minutes=2, at 2 s a step" in capfd.readouterr().err


def test_a_resumed_run_ends_with_the_same_step_however_slow_it_is(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, 1.0)
    whole, run = tmp_path / "whole", tmp_path / "run"
    recipe = small.small(**{**FAST, "save_every": 7}, minutes=1.0)
    saccade.train(recipe, run=whole)
    original = small.loop.is_interrupted
    monkeypatch.setattr(small.loop, "is_interrupted", lambda s, interrupts: s.progress.step == 33)
    with pytest.raises(saccade.train.Interrupted):
        saccade.train(recipe, run=run)
    monkeypatch.setattr(small.loop, "is_interrupted", original)
    clock.step_seconds = 9.0
    saccade.train(resume=run)
    assert last_step(run) == last_step(whole) == 60
    assert small.weights(run) == small.weights(whole)


def test_other_minutes_on_resume_are_measured_again(tmp_path, monkeypatch):
    Clock(monkeypatch, 1.0)
    run = tmp_path / "run"
    saccade.train(small.small(**FAST, minutes=0.5), run=run)
    assert last_step(run) == 30
    saccade.train(resume=run, overrides=["train.minutes=1.0"])
    assert last_step(run) == 60


def test_steps_end_training_before_the_minutes(tmp_path, monkeypatch):
    Clock(monkeypatch, 1.0)
    saccade.train(small.small(**{**FAST, "steps": 27}, minutes=5.0), run=tmp_path / "run")
    assert last_step(tmp_path / "run") == 27


def test_validation_is_not_part_of_the_minutes(tmp_path, monkeypatch):
    clock, run = Clock(monkeypatch, 1.0), tmp_path / "run"
    validate = small.loop.validate

    def slow_validation(s):
        clock.now += 100.0
        validate(s)

    monkeypatch.setattr(small.loop, "validate", slow_validation)
    saccade.train(small.small(**{**FAST, "valid_every": 4}, minutes=1.0), run=run)
    assert last_step(run) == 60


def test_the_expected_time_is_printed_after_five_steps(tmp_path, monkeypatch, capfd):
    Clock(monkeypatch, 2.0, first=7.0)
    saccade.train(small.small(**{**FAST, "steps": 30}), run=tmp_path / "run")
    err = capfd.readouterr().err
    assert "expected time for 30 steps: 48 s and validation, at 2 s a step" in err
    assert err.index("step 5/30") < err.index("expected time") < err.index("step 7/30")


def test_a_slow_first_step_is_enough(tmp_path, monkeypatch, capfd):
    Clock(monkeypatch, 4000.0)
    saccade.train(small.small(**{**FAST, "steps": 40}), run=tmp_path / "run")
    err = capfd.readouterr().err
    assert err.index("expected time for 40 steps: 1.8 days") < err.index("step 2/40")
    assert "note: that is days; the recipe small-data is made for small data and a CPU; --tiny trains" in err


def test_short_trainings_are_not_announced(tmp_path, monkeypatch, capfd):
    Clock(monkeypatch, 0.1)
    saccade.train(small.small(**{**FAST, "steps": 30}), run=tmp_path / "run")
    assert "expected time" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(42.4, "42 s"), (720, "12 min"), (12_000, "3 h 20 min"), (535_680, "6.2 days")]
)
def test_times_are_for_people(seconds, text):
    assert format_time(seconds) == text


def test_the_banner_says_what_is_trained_and_how_to_stop(tmp_path, capfd):
    run = tmp_path / "run"
    saccade.train(small.small(**{**FAST, "steps": 2}), run=run)
    err = capfd.readouterr().err
    assert re.search(
        r"training 'copy' on the CPU with \d+ threads?: [\d,]+ parameters, 300 examples, 2 steps\n"
        rf"the run is in {run}; learning curves: saccade watch {run}\n"
        rf"Ctrl-C saves a checkpoint and stops; go on with: saccade train --resume {run}\n",
        err,
    )
    assert err.index("training 'copy'") < err.index("step 1/2")


def test_the_banner_counts_what_is_trained(monkeypatch):
    weights = [SimpleNamespace(numel=lambda: 1500, requires_grad=trained) for trained in (True, False)]
    s = SimpleNamespace(
        model=SimpleNamespace(parameters=lambda: weights),
        recipe=small.small(epochs=3, patience=2),
        total_steps=None,
        num_examples=None,
        device=small.torch.device("cpu"),
        run="runs/x",
        resume_command="saccade train --resume runs/x",
        hint="set this",
    )  # fmt: skip
    first, *others = format_banner(s)
    assert others[-1] == "set this"
    assert "3,000 parameters, 1,500 of them trained, 3 epochs or until patience ends" in first


def test_a_pace_that_is_known_costs_nothing(monkeypatch):
    """After the announcement, the clock is not even read."""
    known = Pace(SimpleNamespace(progress=SimpleNamespace(step=0), excluded_seconds=0.0))
    known.announced = True
    monkeypatch.setattr(pace, "get_training_time", pytest.fail)
    known.update(SimpleNamespace(recipe=small.small(steps=5)))
    assert known.announced and known.is_first


def test_days_are_announced_before_the_first_step_by_the_least_that_steps_take(monkeypatch):
    """Trained matrices count, embeddings and frozen ones do not: 16 weights, 512 tokens a step."""
    model = torch.nn.Sequential(torch.nn.Embedding(99, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 9))
    model[2].requires_grad_(False)
    steps = 10**9
    monkeypatch.setattr(pace, "MIN_FLOPS", 0)
    recipe, begun = small.small(steps=steps), SimpleNamespace(step=0)
    s = SimpleNamespace(model=model, recipe=recipe, device=torch.device("cpu"), total_steps=steps, progress=begun)
    least = 6 * 16 * 512 * steps
    for days, text in ((0.9, ""), (3, "note: 1,000,000,000 steps take at least 3.0 days on this CPU; the recipe ")):
        monkeypatch.setattr(pace, "measure_matmul_flops", lambda days=days: least / (days * 86_400))
        found = pace.warn_of_days(s, data=None)
        assert found.startswith(text) and bool(found) == bool(text)
    s.device = torch.device("cuda")
    assert pace.warn_of_days(s, data=None) == ""


def test_a_small_data_set_fills_no_batches(tmp_path):
    data = prepare(small.small(), cache=tmp_path, report=lambda line: None).train
    lengths = [data.get_lengths(np.arange(len(data)), side=side).sum() for side in (0, 1)]
    settings = small.small(batch_tokens=10**6).train
    assert pace.count_batch_tokens(settings, data) == sum(lengths) / 2
    assert pace.count_batch_tokens(settings, data=None) == 10**6
