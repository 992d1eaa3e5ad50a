"""What a run records for `saccade watch`: samples, and attention on fixed validation examples."""

import json

import numpy as np
import pytest
import small

from saccade.config.load import validate
from saccade.runs import notify_of_runs, read_metrics
from saccade.train.attention_watch import MAX_TOKENS, MAX_WEIGHTS, MIN_TOKENS, keep_last_layers
from saccade.view import moments
from saccade.view.maps import AttentionMap


def documents(run, step):
    return moments.read(run, step)["documents"]


def test_watching_changes_no_weight(fit):
    plain = fit("plain", ema=0.9, steps=12)
    watched = fit("watched", ema=0.9, steps=12, watch=True)

    assert moments.list_steps(plain) == [] and moments.list_steps(watched) == [0, 4, 8, 12]
    assert small.weights(plain) == small.weights(watched)
    assert small.weights(plain, 12) == small.weights(watched, 12)


def test_the_same_examples_are_recorded_from_the_first_step_to_the_last(fit):
    run = fit(watch=True, steps=6)

    assert moments.list_steps(run) == [0, 4, 6]
    found = [documents(run, step) for step in (0, 4, 6)]
    assert len(found[0]) == 2 and found[0][0]["title"] == "run"
    for first, last in zip(found[0], found[-1], strict=True):
        assert first["input"] == last["input"] and first["labels"] == last["labels"]
        assert {entry["part"] for entry in last["maps"]} == {"reader", "writer", "cross"}
        assert first["maps"][0]["weights"] != last["maps"][0]["weights"]


def test_recorded_attention_is_that_of_the_model(fit):
    run = fit(watch=True, steps=6)
    seen = documents(run, 6)[0]
    view = small.api.Predictor.load(run).view(seen["input"], seen["output"]).data()

    assert seen["labels"] == view["labels"]
    for address, numbers in view["statistics"].items():
        np.testing.assert_allclose(seen["statistics"][address]["entropy"], numbers["entropy"], atol=1e-4)


def test_a_resumed_run_drops_records_after_its_checkpoint(fit):
    whole = fit("whole", watch=True, steps=8)
    run = fit(watch=True, steps=4)
    moments.write(run, 8, [], every=4)  # of a process that was killed before it saved
    resumed = fit(resume=True, overrides=["train.steps=8"])

    assert moments.list_steps(resumed) == moments.list_steps(whole) == [0, 4, 8]
    assert documents(resumed, 8) == [{**one, "title": "run"} for one in documents(whole, 8)]


SENTENCES = {
    "train": [{"files": ["embedded:sentences"], "examples": 60}],
    "valid": [{"files": ["embedded:sentences-heldout"], "examples": 20}],
    "max_length": 40,
}


@pytest.mark.parametrize("task", ["language-model", "encode"])
def test_attention_of_encoders_and_language_models_is_recorded(task, tmp_path):
    parts = {
        "language-model": {"reader": {"kind": "none"}, "writer": {"stack": small.STACK, "tie": "output"}},
        "encode": {
            "reader": {"stack": small.STACK}, "writer": {"kind": "masked"}, "objectives": [{"kind": "masked"}],
            "tokenizer": {"kind": "wordpiece", "size": 90, "mask_token": True},
        },
    }[task]  # fmt: skip
    settings = {**small.TRAIN, "steps": 2, "watch": True}
    recipe = {"task": task, "data": SENTENCES, "tokenizer": {"kind": "characters"}, **parts, "train": settings}
    small.api.train(validate(recipe), run=tmp_path / "run")

    found = documents(tmp_path / "run", 2)
    side = {"language-model": "target", "encode": "source"}[task]
    assert len(found) == 2 and all(MIN_TOKENS <= len(one["labels"][side]) <= MAX_TOKENS for one in found)
    assert {entry["part"] for entry in found[0]["maps"]} == {"language-model": {"writer"}, "encode": {"reader"}}[task]


def test_without_validation_data_only_attention_is_missing(fit, capsys):
    run = fit(watch=True, steps=4, data={**small.COPY, "valid": []})

    assert "attention is not recorded: there is no validation data; give --valid" in capsys.readouterr().err
    assert moments.list_steps(run) == [] and len(read_metrics(run / "metrics.jsonl")) == 1


def test_examples_that_are_too_long_are_not_recorded(fit, capsys, monkeypatch):
    monkeypatch.setattr("saccade.train.attention_watch.MAX_TOKENS", 2)
    run = fit(watch=True, steps=4)

    printed = capsys.readouterr().err
    assert printed.count("attention is not recorded: none of the first validation examples has at most 2 tokens") == 1
    assert moments.list_steps(run) == [] and small.weights(run)


def test_of_a_large_model_the_last_layers_are_kept():
    size = int((MAX_WEIGHTS / 2) ** 0.5)
    shape = np.zeros((1, size, size), dtype=np.float32)
    names = {"source": ["a"] * size}
    maps = [AttentionMap(str(layer), "reader", layer, shape, "source", "source", names) for layer in (1, 2, 3)]

    assert [entry.layer for entry in keep_last_layers(maps)] == [2, 3]
    assert [entry.layer for entry in keep_last_layers(maps[:1])] == [1]


def test_samples_are_kept_of_each_validation(fit):
    run = fit(steps=20, valid_predictions=9)
    lines = read_metrics(run / "samples.jsonl")

    assert [line["step"] for line in lines] == [10, 20]
    assert len(lines[0]["samples"]) == 8 and {"input", "reference", "output"} == lines[0]["samples"][0].keys()
    assert lines[0]["samples"][0]["input"] == lines[0]["samples"][0]["reference"]


def test_samples_after_the_step_of_a_resume_come_once(fit):
    run = fit(steps=14, valid_predictions=3)
    with (run / "samples.jsonl").open("a") as file:
        print(json.dumps({"event": "samples", "step": 20, "samples": []}), file=file)
    fit(resume=True, overrides=["train.steps=24"])

    assert [line["step"] for line in read_metrics(run / "samples.jsonl")] == [10, 14, 20, 24]


def test_listeners_get_the_folder_of_a_run_once(fit):
    heard = []
    with notify_of_runs(heard.append):
        run = fit(steps=2)
    fit("other", steps=2)

    assert heard == [run]


@pytest.mark.cuda
def test_watching_changes_no_weight_on_a_gpu(fit):
    plain = fit("plain", device="cuda", deterministic=True)
    assert small.weights(plain) == small.weights(fit("watched", device="cuda", deterministic=True, watch=True))
