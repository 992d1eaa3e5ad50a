import errno
import importlib.util
import json
import os
import signal
import time
from types import SimpleNamespace

import pytest
import small
import torch
from safetensors.torch import load_file

from saccade.data.batching import batches
from saccade.data.prepare import prepare
from saccade.errors import SaccadeError
from saccade.train import checkpoint, loop, session, validate
from saccade.train.log import Log
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.objectives.terms import Term
from saccade.train.schedule import compute_total_steps
from saccade.train.signals import Interrupted
from saccade.train.validate import select_decodable_pairs

STEPS = {"steps": 6, "valid_every": 3, "save_every": 2, "report_every": 2, "accumulate": 1}


def state(run, step):
    return json.loads((run / "checkpoints" / f"step-{step}" / "state.json").read_text())


def steps(run):
    return checkpoint.list_steps(run / "checkpoints")


def calling(function, *, at):
    """An objective that calls a function when it is used for the nth time in training."""
    calls = 0

    def objective(model, batch, generator):
        nonlocal calls
        terms = next_token_loss(model, batch, generator)
        if model.training:
            calls += 1
            if calls == at:
                return function(terms)
        return terms

    return {"kinds": {"calling": objective}, "overrides": ["objectives=[{kind='calling'}]"]}


def spoil(terms):
    term = terms["next-token"]
    return {"next-token": Term(term.sum * float("nan"), term.count, 1.0)}


def test_nan_stops_with_step_rate_and_what_to_try(fit, tmp_path):
    with pytest.raises(SaccadeError, match=r"at step 6 \(learning rate 5.00e-03\).*train.clip=1.0.*step-4") as error:
        fit(**STEPS, **calling(spoil, at=6))

    assert "\n" not in str(error.value)
    assert steps(tmp_path / "run") == [4, 2]


def test_nan_before_the_first_checkpoint_says_so(fit):
    with pytest.raises(SaccadeError, match="no checkpoint had been written yet"):
        fit(**STEPS, **calling(spoil, at=1))


def test_diverged_weights_are_never_saved(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "has_finite_weights", lambda model: False)

    with pytest.raises(SaccadeError, match="no longer a finite number"):
        fit(**STEPS)

    assert steps(tmp_path / "run") == []


def test_loss_read_late_names_the_steps_in_question(fit, monkeypatch):
    """As on a GPU, where the loss is not checked at every step."""
    monkeypatch.setattr(loop.math, "isfinite", lambda loss: True)
    taken = loop.optimizer_step

    def unchecked(s):
        before = s.checked_step
        taken(s)
        s.checked_step = before

    monkeypatch.setattr(loop, "optimizer_step", unchecked)
    with pytest.raises(SaccadeError, match="between steps 3 and 4"):
        fit(**{**STEPS, "valid_every": 99}, **calling(spoil, at=3))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_and_tells_the_way_on(fit, tmp_path, number, code):
    def interrupt(terms):
        os.kill(os.getpid(), number)
        return terms

    with pytest.raises(Interrupted, match="saved at step 3; go on with: saccade train --resume") as stop:
        fit(**{**STEPS, "valid_every": 6}, **calling(interrupt, at=3))
    assert stop.value.exit_code == code and steps(tmp_path / "run")[0] == 3
    assert (tmp_path / "run/model.safetensors").exists()

    kinds = {"calling": next_token_loss}
    resumed = fit(resume=True, kinds=kinds)
    whole = fit("whole", **{**STEPS, "valid_every": 6}, overrides=["objectives=[{kind='calling'}]"], kinds=kinds)
    assert small.weights(resumed, 6) == small.weights(whole, 6)


def test_full_disk_stops_with_one_line_and_the_run_can_be_resumed(fit, tmp_path, monkeypatch):
    write = checkpoint.write_file

    def full(path, content):
        if path.parent.name == ".step-4.partial" and path.name == "optimizer.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    with monkeypatch.context() as patch, pytest.raises(SaccadeError, match="No space left.*last intact one is step-2"):
        patch.setattr(checkpoint, "write_file", full)
        fit(**STEPS)

    assert small.weights(fit(resume=True), 6) == small.weights(fit("whole", **STEPS), 6)


def test_disk_that_is_full_of_anything_else_is_reported_in_one_line(fit, monkeypatch):
    def full(self, event, *, step, values):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Log, "record", full)

    with pytest.raises(SaccadeError, match="cannot write to the run .*: No space left on device; .*--resume") as error:
        fit(**STEPS)
    assert "\n" not in str(error.value)


def test_missing_tensorboard_is_reported(fit, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))

    with pytest.raises(
        SaccadeError,
        match=r"train.loggers=tensorboard needs the package tensorboard: pip install 'saccade\[tensorboard\]'",
    ):
        fit(**STEPS, loggers=["tensorboard"])


def test_changed_training_data_is_refused(fit):
    run = fit(**STEPS)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('embedded:copy"', 'embedded:reverse"'))

    with pytest.raises(SaccadeError, match="cannot resume at the saved position in the data: data was"):
        fit(resume=True)


def test_broken_newest_checkpoint_is_named_and_the_one_before_it_used(fit, capsys):
    run = fit(**STEPS)
    weights = small.weights(run, 6)
    (run / "checkpoints/step-6/model.safetensors").write_bytes(b"half")
    capsys.readouterr()

    fit(resume=True)

    said = capsys.readouterr().err
    assert "step-6' is damaged" in said and "resumes from step 4" in said
    assert small.weights(run, 6) == weights


def test_patience_ends_a_run_that_gets_no_better(fit, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.0, 1.0])
    monkeypatch.setattr(validate, "evaluate_weights", lambda s, weights: {"loss": next(losses)})

    run = fit(**{**STEPS, "steps": 99, "valid_every": 1, "patience": 2})

    assert steps(run)[0] == 4
    assert state(run, 4)["progress"]["best_step"] == 2 and steps(run) == [4, 2]
    best = load_file(run / "model.safetensors")
    assert all(
        torch.equal(best[name], tensor)
        for name, tensor in load_file(run / "checkpoints/step-2/model.safetensors").items()
    )


def test_the_loss_breaks_ties_of_scores(fit, monkeypatch):
    measured = iter([{"accuracy": 50.0, "loss": loss} for loss in (3.0, 2.0, 2.5)])
    monkeypatch.setattr(validate, "evaluate_weights", lambda s, weights: next(measured))

    run = fit(**{**STEPS, "steps": 99, "valid_every": 1, "patience": 2, "metric": "accuracy", "valid_predictions": 3})

    progress = state(run, 3)["progress"]  # a lower loss alone does not renew patience
    assert (progress["best_step"], progress["best_loss"], progress["misses"]) == (2, 2.0, 2)


def test_epochs_are_a_budget(fit):
    run = fit(**{**STEPS, "steps": "none", "epochs": 1, "valid_every": 99})

    [last, *_] = steps(run)
    assert state(run, last)["progress"]["epoch"] == 1.0
    assert last == state(run, last)["data"]["batch"] > 6


def test_minutes_are_a_budget_and_the_time_used_is_saved(fit):
    run = fit(**{**STEPS, "steps": "none", "minutes": 0.00001})
    progress = state(run, 1)["progress"]
    assert steps(run) == [1] and progress["seconds"] >= 0.0006 and progress["planned_steps"] == 1

    fit(resume=True)

    assert steps(run) == [1]


def test_the_moving_average_is_validated_and_written(fit):
    run = fit(**STEPS, ema=0.5)

    kept, written = load_file(run / "checkpoints/step-6/ema.safetensors"), load_file(run / "model.safetensors")
    own = load_file(run / "checkpoints/step-6/model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in written.items())
    assert not all(torch.equal(own[name], tensor) for name, tensor in written.items())


def test_outputs_are_scored_in_validation_without_long_pairs(fit):
    data = {**small.COPY, "max_length": 9}

    run = fit(**{**STEPS, "metric": "accuracy", "valid_predictions": 7}, data=data)

    [first, last] = [line for line in small.read_metrics(run) if line["event"] == "valid"]
    assert first["accuracy"] == 0.0 and "bleu" in first and "|tok:13a|" in first["signature"]
    assert first["best"] and last["best"] == (last["loss"] < first["loss"])


def test_bf16_with_recomputed_activations_and_tensorboard_trains(fit):
    run = fit(**{**STEPS, "steps": 2, "precision": "bf16", "recompute": True, "loggers": ["tensorboard"]})

    assert all(tensor.dtype == torch.float32 for tensor in load_file(run / "model.safetensors").values())
    assert (run / "tensorboard").is_dir()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": "none"}, "training has no end: set train.steps, train.epochs or train.minutes"),
        ({"metric": "bleu"}, "train.valid_predictions is 0"),
        ({"data": {"train": small.COPY["train"]}, "patience": 3}, "train.patience needs validation data"),
        ({"data": {"train": small.COPY["train"]}, "average": {"kind": "best"}}, "average.kind=best needs validation"),
        (
            {"data": {"train": small.COPY["train"]}, "metric": "bleu", "valid_predictions": 5},
            "train.metric=bleu needs validation data",
        ),
        (
            {"steps": "none", "patience": 3, "schedule": {"kind": "cosine", "lr": 0.1, "warmup_steps": 2}},
            "training has no end",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(fit, tmp_path, settings, message):
    with pytest.raises(SaccadeError, match=message):
        fit(**settings)

    assert not (tmp_path / "run").exists()


def test_metric_of_outputs_needs_a_pair_that_can_be_decoded():
    source = SimpleNamespace(encode_all=lambda texts: [[5] * 9 for _ in texts])
    data = SimpleNamespace(valid_pairs=[("long", "x")], tokenizers=SimpleNamespace(source=source, labels=None))
    recipe = small.small(data={**small.COPY, "max_length": 8}, metric="bleu", valid_predictions=3)

    with pytest.raises(SaccadeError, match="train.metric=bleu: none of the 1 validation pairs .* data.max_length = 8"):
        select_decodable_pairs(recipe, data)


def test_epochs_end_a_cosine(fit):
    schedule = {"kind": "cosine", "lr": 0.01, "warmup_steps": 2, "min_lr": 0.001}

    run = fit(steps="none", epochs=1, valid_every=99, save_every=99, report_every=1, schedule=schedule)

    assert small.read_metrics(run)[-2]["lr"] == pytest.approx(0.001)


def test_the_end_is_reported_also_between_two_reports(fit):
    run = fit(**{**STEPS, "steps": 3, "report_every": 4})

    lines = small.read_metrics(run)
    tokens = state(run, 3)["progress"]["tokens"]
    assert [(line["event"], line["step"]) for line in lines] == [("train", 3), ("valid", 3)]
    assert tokens > 0 and f" {tokens:,} tokens," in (run / "card.md").read_text()


def test_the_end_of_patience_is_reported_once(fit, monkeypatch):
    losses = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(validate, "evaluate_weights", lambda s, weights: {"loss": next(losses)})

    run = fit(**{**STEPS, "steps": 99, "valid_every": 1, "patience": 2})

    reports = [line["step"] for line in small.read_metrics(run) if line["event"] == "train"]
    assert reports == [2, 3]


def test_speed_is_that_of_training_without_validation_and_saving(fit, monkeypatch):
    def slow(function):
        return lambda s: (time.sleep(0.4), function(s))

    monkeypatch.setattr(loop, "validate", slow(loop.validate))
    monkeypatch.setattr(loop, "save_checkpoint", slow(loop.save_checkpoint))

    run = fit(**{**STEPS, "steps": 2, "valid_every": 1, "save_every": 1, "report_every": 2})

    [line] = [line for line in small.read_metrics(run) if line["event"] == "train"]
    assert state(run, 2)["progress"]["tokens"] / line["tokens_per_second"] < 0.4


def test_cosine_ends_with_the_epoch_of_the_stream(monkeypatch):
    """Pools of unequal size, cut as the stream cuts them."""
    monkeypatch.setattr(batches, "POOL_SIZE", 23)
    settings = small.small(
        steps="none", epochs=1, accumulate=1, schedule={"kind": "cosine", "lr": 0.1, "warmup_steps": 2}
    )
    store = prepare(settings, report=lambda text: None).train
    for seed in range(5):
        stream, count = batches.BatchStream(store, batch_tokens=256, seed=seed), 0
        while stream.epoch < 1:
            next(stream)
            count += 1

        train = settings.train.model_copy(update={"seed": seed})
        assert compute_total_steps(train, store) == count
