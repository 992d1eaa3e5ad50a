"""Masked image modelling, and warm starts from its reader."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import saccade
from saccade.config.load import load
from saccade.config.schema import LabelWriter
from saccade.data.batching.batch import Batch, Pictures
from saccade.data.prepare import prepare
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.train.objectives.masked_patches import masked_patch_loss
from saccade.train.transfer.adopt_media import adopt_media_parts

QUICK = [
    "data.train.0.examples=60", "data.valid.0.examples=8", "train.batch_tokens=512", "train.save_every=3",
    "train.valid_every=3", "train.schedule={kind='constant', lr=0.001, warmup_steps=0}",
    "reader.stack={layers=1, dim=16, heads=2, ff=16}",
]  # fmt: skip


def test_one_batch_is_learned():
    torch.manual_seed(1)
    model = build(load("vit-masked", tiny=True), source_size=9, target_size=9).train()
    shade = torch.linspace(0, 255, 48)[None, None, None].expand(8, 3, 48, 48)
    batch = Batch({"source": Pictures(shade.to(torch.uint8), torch.ones(8, 37).bool())})
    optimizer, generator, losses = torch.optim.Adam(model.parameters(), lr=2e-3), torch.Generator(), []
    for _ in range(40):
        term = masked_patch_loss(model, batch, generator, mask_ratio=0.5)["patches"]
        loss = term.sum / term.count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.8
    assert losses[-1] < 0.1


def test_a_resumed_run_is_bit_for_bit_the_same_and_its_reader_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saccade.train("vit-masked", tiny=True, run="whole", overrides=[*QUICK, "train.steps=6"])
    saccade.train("vit-masked", tiny=True, run="parts", overrides=[*QUICK, "train.steps=3"])
    saccade.train(resume="parts", overrides=["train.steps=6"])
    whole, parts = (load_file(Path("runs") / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    few = ["data.train.0.examples=200", "data.valid.0.examples=8", "train.steps=1", "train.ema=0.0"]
    saccade.train("vit", tiny=True, run="told", overrides=[*few, "train.metric=loss", "freeze=reader", "init=whole"])
    frozen = load_file(Path("runs/told/model.safetensors"))
    assert all(torch.equal(frozen[name], whole[name]) for name in whole if name.startswith("reader."))


def test_a_recipe_by_name_takes_over_how_a_run_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saccade.train("vit-masked", tiny=True, run="x", overrides=[*QUICK, "train.steps=1", "reader.class_token=false"])
    recipe = adopt_media_parts(load("vit"), {"init": "x"})
    assert (recipe.reader.size, recipe.reader.stack.dim, recipe.reader.class_token) == (48, 16, False)
    assert recipe.reader.augment == load("vit").reader.augment
    assert isinstance(recipe.writer, LabelWriter)
    assert recipe.writer.pooling == "mean"


def test_any_folder_of_pictures_will_do_and_labels_are_not_asked_for(tmp_path):
    for number in range(3):
        Image.new("RGB", (20, 20), (80 * number, 9, 9)).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_text("no picture")
    recipe = load("vit-masked", overrides=[f"data.train=['{tmp_path}']", "data.on_error=skip"])
    found = prepare(recipe, cache=tmp_path / "cache", report=lambda note: None)
    assert len(found.train) == 3
    assert found.train.sides == ("source",)
    assert "broken.png: is not a readable picture" in found.notes[0]


def test_a_folder_without_pictures_is_reported(tmp_path):
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(SaccadeError, match="has no picture in it; expected files such as"):
        prepare(load("vit-masked", overrides=[f"data.train=['{tmp_path}']"]), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vit-masked", "reader={kind='grid', channels=[320]}", 'predicts patches, got reader.kind = "grid"; set it to'),
        ("vit-masked", "writer={kind='masked'}", 'goes with writer.kind = "states" or "patches" here, got "masked"'),
        ("vit-masked", "objectives=[{kind='label'}]", 'cannot be trained by the objective "label"; use "patches"'),
        ("vit-masked", "train.metric=accuracy", 'has no references for train.metric = "accuracy"'),
        ("vit-masked", "objectives.0.mask_ratio=1.0", "objectives.0.mask_ratio"),
        (
            "vit-masked",
            "reader.patch_size=32",
            "a picture of one patch has no others to predict it from; set reader.patch_size",
        ),
    ],
)
def test_incompatible_settings_are_reported(name, change, message):
    with pytest.raises(SaccadeError, match=message):
        load(name, overrides=[change])
