"""Runs with `data.filter`: what they report and keep, and that they resume."""

import json

import pytest
import small
from test_language import recipe as language_model

from saccade.errors import SaccadeError
from saccade.train import api

STEPS = {"steps": 4, "valid_every": 2, "save_every": 2, "report_every": 2, "accumulate": 1}
FILTERED = {**small.COPY, "filter": {"unit": "characters", "max_length": 5, "drop_duplicates": "exact"}}


def read_report(run):
    return json.loads((run / "filter.json").read_text(encoding="utf-8"))


def test_run_reports_and_keeps_what_was_dropped(fit, capsys):
    run = fit(**STEPS, data=FILTERED)

    assert "data.filter dropped " in capsys.readouterr().err
    assert "* note: data.filter dropped " in (run / "card.md").read_text()
    report = read_report(run)
    assert set(report) == {"train"}
    [corpus] = report["train"]
    assert corpus["corpus"] == "embedded:copy" and corpus["total"] == 300
    found = corpus["dropped"]["too long"]
    assert 0 < found["count"] < 300 and all(len(one["texts"][0]) > 5 for one in found["examples"])


def test_run_with_a_filter_resumes_exactly(fit):
    run = fit(**{**STEPS, "steps": 2}, data=FILTERED)
    fit(resume=True, overrides=["train.steps=4"])

    assert small.weights(run, 4) == small.weights(fit("whole", **STEPS, data=FILTERED), 4)


def test_filter_that_drops_nothing_changes_no_number(fit):
    plain = fit("plain", **STEPS)
    run = fit(**STEPS, data={**small.COPY, "filter": {"min_length": 1, "max_length": 10_000}})

    assert small.weights(run, 4) == small.weights(plain, 4)
    assert not (plain / "filter.json").exists() and read_report(run)["train"][0]["dropped"] == {}


def test_filter_cannot_change_when_a_run_is_resumed(fit):
    fit(**STEPS)

    with pytest.raises(SaccadeError, match="data cannot change when a run is resumed"):
        fit(resume=True, overrides=["data.filter.min_length=2"])


def test_stream_counts_what_it_has_read(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Text number {n % 40}.\n" for n in range(60)))
    data = {"train": [{"files": [str(path)]}], "valid": [{"files": ["embedded:sentences"], "examples": 5}]}
    data |= {"stream": True, "buffer": 50, "max_length": 24, "filter": {"drop_duplicates": "exact"}}

    api.train(language_model(data=data, **STEPS), run=tmp_path / "run")

    [corpus] = read_report(tmp_path / "run")["train"]
    assert corpus["total"] == 60 and corpus["dropped"]["duplicate"]["count"] == 20
    assert "data.filter dropped 20 of 60 documents" in capsys.readouterr().err
