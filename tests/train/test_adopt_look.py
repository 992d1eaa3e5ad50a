"""Questions about pictures that are read by what another run has learned."""

import pytest
import torch
from safetensors.torch import load_file

from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.train import api

FEW = [
    "train.steps=1", "train.valid_every=9", "train.save_every=9", "train.metric=loss", "train.valid_predictions=0",
    "train.device=cpu", "data.train.0.examples=40", "data.valid=0", "train.ema=0", "train.batch_tokens=512",
    "train.schedule={kind='constant', lr=1e-30, warmup=0}",
]  # fmt: skip
SMALL = ["reader.size=16", "reader.stack.dim=20", "reader.stack.layers=1", "reader.stack.ff=7"]


@pytest.fixture
def seeing(tmp_path):
    api.train("vit", tiny=True, run=tmp_path / "vit", overrides=[*FEW, *SMALL])
    return tmp_path / "vit"


def asked(path, *overrides, name="show-ask-attend-answer"):
    api.train(name, tiny=True, run=path, overrides=[*FEW, *overrides])
    return path


def looks(run, prefix):
    weights = load_file(run / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def test_what_reads_pictures_is_that_of_another_run(seeing, tmp_path, capsys):
    first = asked(tmp_path / "first", f"reader.look.init={seeing}", "reader.look.changes.crop=2")
    theirs, ours = looks(seeing, "reader."), looks(first, "reader.look.")
    assert f"reader.look.init={seeing}: {len(ours)} of {len(ours)} tensors taken over" in capsys.readouterr().err
    torch.testing.assert_close(ours, theirs)
    look = load(first / "recipe.toml").reader.look
    assert (look.size, look.stack.dim, look.changes.crop) == (16, 20, 2)
    again = asked(tmp_path / "again", f"reader.look.init={first}", name="ask-attend-answer")
    torch.testing.assert_close(looks(again, "reader.look."), theirs)


def test_a_run_without_such_a_reader_is_refused(seeing, tmp_path):
    with pytest.raises(SaccadeError, match="the reader.look of that run is 20 wide, and this one 24; set"):
        asked(tmp_path / "x", f"reader.look.init={seeing}", "reader.look.stack.dim=24")
    api.train("dates", tiny=True, run=tmp_path / "dates", overrides=FEW)
    with pytest.raises(SaccadeError, match=r'that run has reader.kind = "tokens"; give one with "grid" or "patches"'):
        asked(tmp_path / "x", f"reader.look.init={tmp_path / 'dates'}")
    with pytest.raises(SaccadeError, match="reader.look"):
        api.train("vit", tiny=True, run=tmp_path / "x", overrides=[f"reader.look.init={seeing}"])
