"""The recipes that read words in pictures, tell pictures by hard attention, and tell them by a Transformer."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import saccade
from saccade.data.synthetic.media import open_or_generate
from saccade.demo.listing import get_demonstration

FEW = [
    "train.steps=4", "train.schedule.warmup_steps=1", "train.valid_every=2", "train.save_every=2",
    "data.train.0.examples=40", "data.valid.0.examples=10", "train.batch_tokens=512", "predict.max_length=6",
    "train.valid_predictions=5",
]  # fmt: skip
HARD = ["writer.stack.hard_attention=true", "objectives=[{kind='reinforce'}]"]
CASES = [
    ("show-attend-read", "words-heldout", ["writer.stack.dim=16"], (3, 18)),
    ("show-attend-tell", "scenes-heldout", ["writer.stack.dim=16", *HARD], (6, 6)),
    ("show-attend-tell-transformer", "scenes-heldout", [], (6, 6)),
]


def weights(run: str) -> bytes:
    return Path("runs", run, "model.safetensors").read_bytes()


@pytest.mark.parametrize(("name", "data", "changes", "grid"), CASES)
def test_a_resumed_run_predicts_the_same_and_shows_its_attention(name, data, changes, grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [*FEW, *changes, "train.schedule.kind=constant"]
    trained = saccade.train(name, tiny=True, run="whole", overrides=changes)
    saccade.train(name, tiny=True, run="half", overrides=[*changes, "train.steps=2"])
    saccade.train(resume="half", overrides=["train.steps=4"])
    assert weights("half") == weights("whole")
    files = sorted(map(str, open_or_generate(data, 10).glob("*.png")))[:3]
    loaded = saccade.load("runs/half")
    assert loaded.predict(files) == trained.predict(files)
    text = json.loads((open_or_generate(data, 10) / "metadata.jsonl").read_text().splitlines()[0])["text"]
    seen = loaded.view(files[0], text)
    assert seen.background.grid == grid
    cross = torch.as_tensor(next(entry for entry in seen.maps if entry.part == "cross").weights)
    torch.testing.assert_close(cross.sum(-1), torch.ones(cross.shape[:2]), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_tiny_reads_words_it_has_never_seen(tmp_path, monkeypatch):
    """Enough held-out words are right to the last letter, and looks go from left to right."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    trained = saccade.train("show-attend-read", tiny=True, run="x")
    assert time.process_time() - begin < 180
    folder = open_or_generate("words-heldout", 300)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    said = trained.predict([str(folder / row["file_name"]) for row in rows])
    right = 100 * np.mean([ours == row["text"] for ours, row in zip(said, rows, strict=True)])
    assert get_demonstration("show-attend-read").target.is_reached(right)
    forward = []
    for row in rows[:30]:
        seen = trained.view(str(folder / row["file_name"]), row["text"])
        cells = seen.background.to_grid(seen.maps[0].weights[0])[: len(row["text"])]
        across = (cells.sum(1) * np.arange(cells.shape[2])).sum(1)
        forward.append((np.diff(across) > 0).mean())
    assert np.mean(forward) > 0.9


@pytest.mark.slow
def test_tiny_tells_scenes_by_a_transformer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    saccade.train("show-attend-tell-transformer", tiny=True, run="x")
    assert time.process_time() - begin < 180
    lines = [json.loads(line) for line in Path("runs/x/metrics.jsonl").read_text().splitlines()]
    best = max(line["accuracy"] for line in lines if line["event"] == "valid")
    assert get_demonstration("show-attend-tell-transformer").target.is_reached(best)
