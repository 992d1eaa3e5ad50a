"""Every recipe's tiny table trains: a few steps of each here, the whole of each in the slow suite."""

import json
import time
from pathlib import Path

import pytest

import saccade
from saccade.config.load import shipped

NAMES = shipped()


def test_every_recipe_is_tried():
    assert len(NAMES) == 14


@pytest.mark.parametrize("name", NAMES)
def test_tiny_takes_a_few_steps_and_predicts_the_same_after_loading(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ["train.steps=3", "train.schedule.warmup=1", "train.valid_predictions=5", "train.batch_tokens=512"]
    small = ["data.train=[{ files = ['embedded:dates'], examples = 300 }]", "predict.max_length=5"]
    trained = saccade.train(name, tiny=True, run="x", overrides=[*few, *small])
    texts = ["3 May 1999", "21 juin 2008"]
    assert saccade.load("runs/x").predict(texts) == trained.predict(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tiny_learns_in_three_minutes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.perf_counter()
    saccade.train(name, tiny=True, run="x")
    assert time.perf_counter() - begin < 180
    lines = [json.loads(line) for line in Path("runs/x/metrics.jsonl").read_text().splitlines()]
    assert max(line["accuracy"] for line in lines if line["event"] == "valid") > 30  # percent of dates, all characters
