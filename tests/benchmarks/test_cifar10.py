"""The script about small photographs."""

import json

from saccade.plan.counts import build_on_meta, count_parameters


def test_it_trains_scores_and_saves(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("cifar10.py", "--tiny", "--out", tmp_path, "train.batch_tokens=512", "data.train.0.examples=200")
    module = script("cifar10")
    module.run_study(module.STUDY, module.build_pack, "")
    rows = {row["what"]: row for row in json.loads((tmp_path / "cifar10.json").read_text())["rows"]}
    assert rows["cifar10: accuracy"]["signature"]
    assert rows["cifar10: top-5"]["value"] >= rows["cifar10: accuracy"]["value"]
    assert rows["cifar10: steps"]["value"] == 8


def test_its_model_has_less_than_twelve_million_parameters_and_no_picture_is_held_out(script, tmp_path):
    module, packs = script("cifar10"), script("packs")
    recipe = packs.recipe_of(module.STUDY, module.build_pack(tmp_path, tmp_path), ["train.seed=3"])
    assert count_parameters(build_on_meta(recipe)) < 12_000_000
    assert (recipe.reader.states, recipe.train.metric, recipe.data.valid) == (64, "loss", ())
    assert recipe.data.train[0].files == (str(tmp_path / "cifar10" / "train.tar.gz"),)
