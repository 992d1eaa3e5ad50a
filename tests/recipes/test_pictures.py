"""What the recipes that read pictures learn at tiny size."""

import json
import time
from pathlib import Path

import pytest

import saccade
from saccade.config.load import load
from saccade.demo.listing import get_demonstration
from saccade.plan.counts import build_on_meta, count_parameters

WITHOUT = ["writer.stack.attention=none", "writer.stack.context_gate=false", "objectives.0.coverage=0"]


def test_the_vit_for_small_pictures_has_less_than_twelve_million_parameters():
    assert count_parameters(build_on_meta(load("vit"))) < 12_000_000


def best(run: str) -> float:
    lines = [json.loads(line) for line in Path("runs", run, "metrics.jsonl").read_text().splitlines()]
    return max(line["accuracy"] for line in lines if line["event"] == "valid")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "cnn-self-attention"])
def test_shapes_are_classified(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train(name, tiny=True, run="x")
    assert time.process_time() - begin < 180
    assert get_demonstration(name).target.is_reached(best("x"))


@pytest.mark.slow
def test_hidden_patches_are_restored_better_than_by_the_background(tmp_path, monkeypatch):
    """Who draws the mean colour of each picture into its patches has a loss of 0.061."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train("vit-masked", tiny=True, run="seen")
    assert time.process_time() - begin < 180
    lines = [json.loads(line) for line in Path("runs/seen/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "valid"]
    assert get_demonstration("vit-masked").target.is_reached(losses[-1])


@pytest.mark.slow
def test_attention_tells_what_no_attention_cannot(tmp_path, monkeypatch):
    """Percent of held-out sentences that are exactly right; the aim is 20 points."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train("show-attend-tell", tiny=True, run="soft")
    assert time.process_time() - begin < 180
    saccade.train("show-attend-tell", tiny=True, run="none", overrides=WITHOUT)
    assert get_demonstration("show-attend-tell").target.is_reached(best("soft"))
    assert best("soft") > best("none") + 50
