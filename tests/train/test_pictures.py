"""Training on pictures: a resumed run equals an uninterrupted one, with augmentation and mixup."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import saccade
from saccade.config.load import load
from saccade.data.batching.batch import Batch, Pictures, pad
from saccade.model.build.model import build
from saccade.train.batches.pack import double_batch
from saccade.train.batches.prefetch import pad_to_two
from saccade.view import moments

QUICK = [
    "data.train.0.examples=60", "data.valid.0.examples=8", "train.batch_tokens=512", "train.save_every=3",
    "train.valid_every=3", "train.metric=loss", "train.schedule={kind='constant', lr=0.001, warmup_steps=0}",
    "reader.augment={flip=0.5, crop=3, num_ops=1}", "objectives.0.mixup=0.4", "objectives.0.cutmix=1.0",
    "reader.stack={layers=1, dim=16, heads=2, ff=16}",
]  # fmt: skip


def test_a_resumed_run_is_bit_for_bit_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saccade.train("vit", tiny=True, run="whole", overrides=[*QUICK, "train.steps=6"])
    saccade.train("vit", tiny=True, run="parts", overrides=[*QUICK, "train.steps=3"])
    saccade.train(resume="parts", overrides=["train.steps=6"])
    whole, parts = (load_file(Path("runs") / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_model_learns_one_batch_of_pictures_by_heart():
    recipe = load("vit", tiny=True)
    model = build(recipe, source_size=9, target_size=4).train()
    values = torch.randint(0, 256, (8, 3, 48, 48), dtype=torch.uint8)
    source = Pictures(values, torch.ones(8, 37).bool())
    classes = torch.arange(8) % 4
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model.writer(model.read(Batch({"source": source}))), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05


@pytest.mark.parametrize("rows", [1, 3])
def test_batches_of_pictures_are_doubled_and_widened(rows):
    values = torch.rand(rows, 3, 4, 4)
    batch = Batch({"source": Pictures(values, torch.ones(rows, 5).bool()), "target": pad([[7, 2]] * rows)})
    twice = double_batch(batch)
    assert torch.equal(twice["source"].values, torch.cat([values, values]))
    wide = pad_to_two(batch)
    assert len(wide["source"].values) == len(wide["target"].ids) == max(rows, 2)
    assert not wide["source"].mask[rows:].any()


def test_a_watched_run_records_attention_on_two_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saccade.train("vit", tiny=True, run="x", overrides=[*QUICK, "train.steps=2", "train.watch=true"])
    first, second = moments.read(Path("runs/x"), 2)["documents"]
    assert first["background"]["grid"] == [6, 6]
    assert first["background"]["image"] != second["background"]["image"]
