"""The default demonstration end to end, with a few steps."""

import pytest

from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.demo import dates as demo
from saccade.demo.listing import get_demonstration

FEWER = ["train.steps=3", "train.valid_every=3", "train.save_every=3", "data.train.0.examples=200", "data.valid=0.1"]


def test_demo_trains_scores_predicts_draws_and_says_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(demo, "load", lambda name, overrides: load(name, overrides=[*overrides, *FEWER]))
    monkeypatch.setattr(demo, "TEST", Corpus(files=("embedded:dates-heldout",), examples=7))

    outcome = demo.run_demo(seed=2)

    said = capsys.readouterr().out
    assert outcome.folder == tmp_path / "runs" / "demo-1" and 0 <= outcome.correct <= 100 and outcome.seconds > 0
    assert (outcome.folder / "attention.png").stat().st_size > 10_000
    assert all(text in said for text in demo.EXAMPLES) and "of 7 dates" in said and "saccade predict" in said
    assert "target: accuracy >= 95: not reached" in said


@pytest.mark.slow
def test_demo_reaches_its_target(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path / "runs"))
    outcome = demo.run_demo()
    assert get_demonstration("dates").target.is_reached(outcome.correct)
    assert "target: accuracy >= 95: reached" in capsys.readouterr().out
