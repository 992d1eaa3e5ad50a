"""Fine-tuning an imported translation model on own pairs: tokenizer and settings stay, weights change."""

import pytest
import torch
from safetensors.torch import load_file

from saccade.config.load import load
from saccade.exchange.importing import import_folder
from saccade.predict.predictors.predictor import Predictor
from saccade.train import api

FEW = [
    "train.valid_every=9", "train.save_every=9", "train.device=cpu", "train.valid_predictions=0", "train.steps=1",
    "train.batch_tokens=64", "train.average.kind=none", "train.metric=loss",
]  # fmt: skip


def test_an_imported_recipe_has_fine_tuning_settings(make, tmp_path):
    folder, _ = make("marian")
    recipe = load(import_folder(str(folder), str(tmp_path / "run")).path / "recipe.toml")
    train = recipe.train
    assert (train.steps, train.epochs, train.clip) == (None, 3, 1.0)
    assert (train.schedule.kind, train.schedule.lr) == ("linear", 5e-5)
    assert recipe.objectives[0].label_smoothing == 0.1


@pytest.mark.parametrize("family", ["marian", "bart"])
@pytest.mark.parametrize("start", ["recipe by name", "the run's own recipe"])
def test_an_imported_model_is_fine_tuned_on_own_pairs(family, start, make, tmp_path):
    folder, _ = make(family)
    imported, run = tmp_path / "imported", tmp_path / "run"
    import_folder(str(folder), str(imported))
    (tmp_path / "a.tsv").write_text("abc de\tlk ja\nk\tb\n")
    recipe = "transformer" if start == "recipe by name" else imported / "recipe.toml"
    for lr, moved in ((1e-30, False), (0.01, True)):
        schedule = f"train.schedule={{kind='constant', lr={lr}, warmup_steps=0}}"
        path = run.with_name(f"run-{moved}")
        api.train(recipe, data=tmp_path / "a.tsv", run=path, overrides=[f"init={imported}", *FEW, schedule])
        before, after = (load_file(where / "model.safetensors") for where in (imported, path))
        assert before.keys() == after.keys()
        changed = [name for name in before if not torch.allclose(before[name], after[name], rtol=0, atol=1e-9)]
        assert bool(changed) == moved, changed
        assert (path / "tokenizer.json").read_bytes() == (imported / "tokenizer.json").read_bytes()
        old, new = (load(where / "recipe.toml") for where in (imported, path))
        assert (new.reader, new.writer) == (old.reader, old.writer)
    texts = ["abc de", "k"]
    assert Predictor.load(run.with_name("run-False")).predict(texts) == Predictor.load(imported).predict(texts)
