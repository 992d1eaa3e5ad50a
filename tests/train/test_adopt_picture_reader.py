"""Questions about pictures, with the picture reader of another run."""

import pytest
import torch
from safetensors.torch import load_file

from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.train import api

FEW = [
    "train.steps=1", "train.valid_every=9", "train.save_every=9", "train.metric=loss", "train.valid_predictions=0",
    "train.device=cpu", "data.train.0.examples=40", "data.valid=0", "train.ema=0", "train.batch_tokens=512",
    "train.schedule={kind='constant', lr=1e-30, warmup_steps=0}",
]  # fmt: skip
SMALL = ["reader.size=16", "reader.stack.dim=20", "reader.stack.layers=1", "reader.stack.ff=7"]


@pytest.fixture
def seeing(tmp_path):
    api.train("vit", tiny=True, run=tmp_path / "vit", overrides=[*FEW, *SMALL])
    return tmp_path / "vit"


def train_question_model(path, *overrides, name="show-ask-attend-answer"):
    api.train(name, tiny=True, run=path, overrides=[*FEW, *overrides])
    return path


def get_reader_tensors(run, prefix):
    weights = load_file(run / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def test_what_reads_pictures_is_that_of_another_run(seeing, tmp_path, capsys):
    first = train_question_model(tmp_path / "first", f"reader.image.init={seeing}", "reader.image.augment.crop=2")
    theirs, ours = get_reader_tensors(seeing, "reader."), get_reader_tensors(first, "reader.look.")
    assert f"reader.image.init={seeing}: {len(ours)} of {len(ours)} tensors copied" in capsys.readouterr().err
    torch.testing.assert_close(ours, theirs)
    look = load(first / "recipe.toml").reader.image
    assert (look.size, look.stack.dim, look.augment.crop) == (16, 20, 2)
    again = train_question_model(tmp_path / "again", f"reader.image.init={first}", name="ask-attend-answer")
    torch.testing.assert_close(get_reader_tensors(again, "reader.look."), theirs)


def test_a_run_without_such_a_reader_is_refused(seeing, tmp_path):
    with pytest.raises(SaccadeError, match="the reader.image of that run is 20 wide, and this one 24; set"):
        train_question_model(tmp_path / "x", f"reader.image.init={seeing}", "reader.image.stack.dim=24")
    api.train("dates", tiny=True, run=tmp_path / "dates", overrides=FEW)
    with pytest.raises(SaccadeError, match=r'that run has reader.kind = "tokens"; give one with "grid" or "patches"'):
        train_question_model(tmp_path / "x", f"reader.image.init={tmp_path / 'dates'}")
    with pytest.raises(SaccadeError, match="reader.image"):
        api.train("vit", tiny=True, run=tmp_path / "x", overrides=[f"reader.image.init={seeing}"])
