"""A reader of a modality of the user's own, from a file outside the package: from training to the server."""

import json

import numpy as np
import pytest

PLUGIN = '''
import io

import numpy as np
import torch
from torch import nn

from saccade.layers.memory import Memory


class SeriesReader(nn.Module):
    """Reads time series of several channels from .npy files: a GRU over every second value."""

    medium, suffixes, step = "wave", (".npy",), 2

    def __init__(self, *, channels: int, dim: int = 8, scale: float = 1.0):
        super().__init__()
        self.dim = dim
        self.layers = nn.GRU(channels, dim, batch_first=True)

    @staticmethod
    def decode(data, name, *, scale: float = 1.0):
        return np.load(io.BytesIO(data), allow_pickle=False) * scale

    def forward(self, values, mask):
        states, _ = self.layers(values[:, ::2])
        return Memory(states, mask[:, ::2])


KINDS = {"series": SeriesReader}
'''
WRITER = ["writer.stack.dim=8", "writer.stack.heads=2", "writer.stack.ff=8", "writer.stack.layers=1", "writer.tie=none"]
TRAIN = [
    "train", "dates", "--data", "waves", "--plugin", "series.py", "task=media-to-text", "reader.kind=series",
    "reader.channels=2", "reader.scale=0.5", "tokenizer.kind=characters", "tokenizer.shared=true", "data.valid=0.2",
    "train.steps=4", "train.valid_every=2", "train.save_every=2", "train.batch_tokens=64", "train.device=cpu",
    "--run", "own", *WRITER,
]  # fmt: skip


@pytest.fixture
def waves(tmp_path):
    (tmp_path / "series.py").write_text(PLUGIN)
    folder, generator = tmp_path / "waves", np.random.default_rng(3)
    folder.mkdir()
    rows = []
    for n in range(12):
        name, word = f"{n}.npy", "up" if n % 2 else "down"
        np.save(folder / name, generator.normal(size=(5 + n % 3, 2)).astype("float32"))
        rows.append(json.dumps({"file_name": name, "text": word}))
    (folder / "metadata.jsonl").write_text("\n".join(rows))
    return folder


def test_a_reader_of_an_own_modality_is_trained_and_used(cli, waves, monkeypatch):
    trained = cli(*TRAIN)
    assert trained.code == 0, trained.err
    monkeypatch.setattr("saccade.serve.server.run_server", lambda server, listener: None)
    for command in (["predict", "own", "waves/3.npy"], ["predict", "own", "waves"], ["view", "own", "waves/4.npy"],
                    ["evaluate", "own", "--data", "waves"], ["compare", "own", "own", "--data", "waves"],
                    ["train", "--resume", "own", "train.steps=6"], ["serve", "own", "--port", "0"]):  # fmt: skip
        assert cli(*command).err.rstrip().endswith("; add --plugin series.py"), command
        result = cli(*command, "--plugin", "series.py")
        assert result.code == 0, result.err
    assert cli("predict", "own", "waves", "--plugin", "series.py").out.count("\n") == 12


def test_files_that_cannot_be_decoded_are_named(cli, waves):
    (waves / "3.npy").write_bytes(b"no array")
    np.save(waves / "4.npy", np.zeros(3, "float32"))
    skipped = cli(*TRAIN)
    assert skipped.code == 0 and "skipped 2 of 12 waves:" in skipped.err, skipped.err
    assert "3.npy cannot be read: ValueError" in skipped.err
    assert "4.npy: decode of reader 'series' must give an array (T, ...), got (3,)" in skipped.err


def test_an_upload_is_decoded_by_the_readers_own_function(cli, waves):
    from fastapi.testclient import TestClient

    from saccade.config.plugins import load_plugins
    from saccade.predict.predictors.predictor import Predictor
    from saccade.serve.app import create_app

    assert cli(*TRAIN).code == 0
    predictor = Predictor.load("runs/own", kinds=load_plugins("series.py"), device="cpu")
    with TestClient(create_app({"own": predictor}), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/predict", files={"file": ("3.npy", (waves / "3.npy").read_bytes())})
        assert answer.status_code == 200, answer.text
        broken = client.post("/v1/predict", files={"file": ("3.npy", b"no array")})
        assert broken.status_code == 422 and "cannot be read" in broken.text
