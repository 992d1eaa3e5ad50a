"""Scripts about packs of pictures and sound run at toy size, and read a pack as it is."""

import json
import tarfile

import numpy as np
import pytest

from saccade.config.schema import Corpus
from saccade.data.media.sound import Recording
from saccade.data.sources.media import read_media


@pytest.mark.parametrize(
    ("name", "scores"),
    [("fsdd", ["accuracy", "cer"]), ("an4", ["wer", "cer"]), ("flickr8k", ["bleu-1", "bleu-4", "cider"])],
)
def test_a_script_trains_scores_and_saves(script, command, tmp_path, monkeypatch, name, scores):
    monkeypatch.chdir(tmp_path)
    command(f"{name}.py", "--tiny", "--out", tmp_path, "train.batch_tokens=512", "data.train.0.examples=40")
    module = script(name)
    module.run_study(module.STUDY, module.build_pack, "")
    found = json.loads((tmp_path / f"{name}.json").read_text())
    rows = {row["what"]: row for row in found["rows"]}
    for score in scores:
        assert rows[f"{name}: {score}"]["signature"]
    assert rows[f"{name}: steps"]["value"] == 8
    assert rows[f"{name}: parameters"]["value"] > 0
    assert "train.batch_tokens=512" in found["notes"]


def test_digits_are_spelled(script, tmp_path):
    (tmp_path / "fsdd").mkdir()
    Recording(np.zeros(800, np.float32), 8000).save(tmp_path / "x.wav")
    for split, names in {"train": ["3_ann_5", "0_bob_7"], "test_a": ["9_ann_0"]}.items():
        with tarfile.open(tmp_path / "fsdd" / f"{split}.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(tmp_path / "x.wav", f"{split}/{name}.wav")
    pack = script("fsdd").build_pack(tmp_path, tmp_path / "made")
    rows = [
        (path.rsplit("/")[-1], text)
        for part in (pack.train, pack.test)
        for _, path, text in read_media(Corpus(files=(str(part[0]),)), medium="sound", target="text")
    ]
    assert rows == [("0_bob_7.wav", "zero"), ("3_ann_5.wav", "three"), ("9_ann_0.wav", "nine")]


@pytest.mark.parametrize("name", ["fsdd", "an4", "flickr8k"])
def test_settings_of_a_full_size_are_a_recipe(script, tmp_path, name):
    module, packs = script(name), script("packs")
    pack = packs.Pack([tmp_path / "a"], [tmp_path / "b"], [tmp_path / "c"] if name == "flickr8k" else [])
    recipe = packs.recipe_of(module.STUDY, pack, ["train.seed=3"])
    assert recipe.train.seed == 3
    assert (recipe.train.metric == "loss") == (name != "flickr8k")
    assert "train.steps=50" in packs.add_schedule(recipe, 50, 0.1)
