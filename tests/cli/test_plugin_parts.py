"""Parts of a user's own from one file, and from an installed package: from training to the server.

A reader of a modality of its own; and a task, a score and a metric together.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from saccade.config.plugins import find_installed, load_plugins

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
    missing = cli("predict", "own", "waves/33.npy", "--plugin", "series.py")
    assert missing.code == 2 and "waves/33.npy not found; did you mean 3.npy?" in missing.err
    assert "12 wave files in " in cli("evaluate", "own", "--data", "waves", "--plugin", "series.py").out


def test_files_that_cannot_be_decoded_are_named(cli, waves):
    (waves / "3.npy").write_bytes(b"no array")
    np.save(waves / "4.npy", np.zeros(3, "float32"))
    stopped = cli(*TRAIN)
    assert stopped.code == 2 and "3.npy: cannot be read: ValueError" in stopped.err, stopped.err
    assert cli(*TRAIN, "data.on_error=skip").code == 0
    [_, listed] = (Path("runs") / "own" / "skipped.jsonl").read_text().splitlines()
    assert "4.npy" in listed and "decode of reader 'series' must give an array (T, ...), got (3,)" in listed


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"wave", (".npy",), 2',
            '"wave", (), 2',
            'needs the suffixes of its files, such as suffixes = (".csv",), got ()',
        ),
        ('"wave", (".npy",), 2', '"wave", ".npy", 2', "needs the suffixes of its files"),
        ("suffixes, step =", "endings, step =", "needs the suffixes of its files"),
        ("def decode(", "def load(", "needs a static method decode(data, name) from bytes to an array; add it"),
    ],
)
def test_what_the_class_of_a_reader_lacks_is_reported(cli, waves, tmp_path, old, new, message):
    (tmp_path / "series.py").write_text(PLUGIN.replace(old, new))
    result = cli(*TRAIN)
    assert result.code == 2 and f"a reader of wave files, series, {message}" in result.err, result.err
    assert result.err.count("\n") == 1


def test_a_missing_folder_is_no_name_of_the_hub(cli, waves, monkeypatch):
    monkeypatch.setattr("saccade.data.sources.hub.load_split", lambda *_, **__: pytest.fail("asked the Hub"))
    result = cli(*("wave" if word == "waves" else word for word in TRAIN))
    message = "wave not found; did you mean waves? (a data set of the Hugging Face Hub is OWNER/NAME)"
    assert (result.code, result.err) == (2, f"error: {message}\n")


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


# ---- a task, a score and a metric; the same from an installed package

TEXT = '''
import torch
from saccade.score.metrics import MeanMetric
from saccade.tasks import BaseTask


class Mirror(BaseTask):
    """Learn from plain lines to write them backwards."""

    name = "mirror"

    def build_split(self, recipe, corpus, **settings):
        from saccade.data.sources.corpus import CorpusSplit

        class Mirrored(CorpusSplit):
            def read_examples(self):
                return ((number, text, text[::-1]) for number, text in super().read_examples())

        return Mirrored(corpus, settings.get("share", 0.0), settings.get("heldout", False), document_unit="lines")

    def read_pairs(self, recipe, corpora, *, synthetic_count=None):
        from saccade.score.pairs import iterate_documents

        texts = iterate_documents(recipe, corpora, synthetic_count=synthetic_count)
        return [(text, text[::-1]) for text in texts]


class Distance(torch.nn.Module):
    """e = -|q - k|^2 / scale"""

    def __init__(self, query_dim, key_dim, *, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def forward(self, query, key):
        return -torch.cdist(query, key) ** 2 / self.scale


class SameLength(MeanMetric):
    name, title = "same-length", "same length"

    def score_example(self, output, reference):
        return len(output) == len(reference)


MINE = {"mirror": Mirror(), "distance": Distance, "same-length": SameLength}
'''
MODULE = f"{PLUGIN}\n{TEXT}\nKINDS = {{**KINDS, **MINE}}\n"
SMALL = ["writer.stack.dim=8", "writer.stack.heads=2", "writer.stack.ff=8", "writer.stack.layers=1", "writer.tie=none"]
SHORT = ["train.steps=2", "train.valid_every=2", "train.device=cpu", "train.batch_tokens=64", "data.valid=0.2"]
SCORE = [
    "reader.positions.kind=sinusoidal", "writer.positions.kind=sinusoidal", "reader.stack.score.kind=distance",
    "writer.stack.score.kind=distance", "writer.stack.score.scale=3.0",
]  # fmt: skip
TEXTS = ["reader.stack.dim=8", "reader.stack.heads=2", "reader.stack.ff=8", "reader.stack.layers=1", *SCORE]
WAVES = ["reader.kind=series", "reader.channels=2", "tokenizer.kind=characters", "tokenizer.shared=true"]
SYSTEMS = {
    "text": ("lines.txt", ["task=mirror", "train.metric=same-length", "tokenizer.size=270", *TEXTS], "abc"),
    "files": ("waves", ["task=media-to-text", *WAVES], "waves/1.npy"),
}


@pytest.fixture(params=["file", "package"])
def options(request, tmp_path, monkeypatch):
    """The options that bring the kinds: `--plugin FILE.py`, or none where a package is installed."""
    (tmp_path / "lines.txt").write_text("".join(f"line {n} abc\n" for n in range(30)))
    (tmp_path / "waves").mkdir()
    for n in range(8):
        np.save(tmp_path / f"waves/{n}.npy", np.ones((4 + n, 2), "float32"))
    rows = [json.dumps({"file_name": f"{n}.npy", "text": "up"}) for n in range(8)]
    (tmp_path / "waves/metadata.jsonl").write_text("\n".join(rows))
    if request.param == "file":
        (tmp_path / "mine.py").write_text(MODULE)
        yield ["--plugin", "mine.py"]
        return
    info = tmp_path / "site" / "mine_of_many-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "mine_of_many.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine_of_many\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[saccade.plugins]\nmine = mine_of_many\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    find_installed.cache_clear()
    yield []
    find_installed.cache_clear()


@pytest.mark.parametrize("system", SYSTEMS)
def test_own_kinds_go_from_training_to_the_server(system, cli, options, monkeypatch):
    monkeypatch.setattr("saccade.serve.server.run_server", lambda server, listener: None)
    data, settings, example = SYSTEMS[system]
    commands = [
        ["train", "dates", "--data", data, "--run", "own", *SMALL, *SHORT, *settings],
        ["train", "--resume", "own", "train.steps=4"],
        ["predict", "own", example],
        ["evaluate", "own", "--data", data, *(["--metrics", "same-length,accuracy"] if system == "text" else [])],
        ["compare", "own", "own", "--data", data, *(["--metric", "same-length"] if system == "text" else [])],
        ["view", "own", example],
        ["serve", "own", "--port", "0"],
    ]
    for command in commands:
        result = cli(*command, *options)
        assert result.code == 0, (command, result.err)
    needed = {item["kind"]: item for item in json.loads(Path("runs/own/plugins.json").read_text())}
    assert needed.keys() == {"text": {"mirror", "distance", "same-length"}, "files": {"series"}}[system]
    assert {item["plugin"] for item in needed.values()} == {"mine.py" if options else "mine_of_many 1.0"}


def test_rows_of_a_changed_task_are_made_anew(cli, tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"line {n} abc\n" for n in range(30)))
    command = ["train", "dates", "--data", "lines.txt", *SMALL, *SHORT, *SYSTEMS["text"][1], "--plugin", "mine.py"]
    weights = []
    for number, code in enumerate((MODULE, MODULE, MODULE.replace("text[::-1]", "text.upper()"))):
        (tmp_path / "mine.py").write_text(code)
        assert cli(*command, "--run", f"r{number}").code == 0
        weights.append(Path(f"runs/r{number}/model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_settings_of_a_request_are_checked_with_the_kinds_of_the_run(cli, tmp_path):
    from saccade.predict.predictors.predictor import Predictor
    from saccade.serve.decoding import DecodingSettings

    (tmp_path / "lines.txt").write_text("".join(f"line {n} abc\n" for n in range(30)))
    (tmp_path / "mine.py").write_text(MODULE)
    settings = [*SMALL, *SHORT, *SYSTEMS["text"][1]]
    assert cli("train", "dates", "--data", "lines.txt", "--run", "own", *settings, "--plugin", "mine.py").code == 0
    predictor = Predictor.load("runs/own", kinds=load_plugins("mine.py"), device="cpu")
    assert DecodingSettings(predictor.recipe).build_decoding({"beam": 2}).beam == 2


def test_a_kind_that_fails_or_is_of_another_sort_is_one_line(cli, tmp_path):
    (tmp_path / "bad.py").write_text(
        "def fails(*, dim: int = 3):\n    return dim / 0\nKINDS = {'fails': fails, 'three': 3}"
    )
    start = ["train", "dates", "--tiny", "--plugin", "bad.py"]
    failed = cli(*start, "reader.stack={kind='fails', dim=8}")
    assert (failed.code, failed.err.count("\n")) == (2, 1)
    assert "the kind 'fails' cannot be built: ZeroDivisionError: division by zero (line 2)" in failed.err
    wrong = cli(*start, "reader.stack={kind='three'}")
    assert "unknown kind 'three' here: that of bad.py is of type int; expected a class or function" in wrong.err
    table = cli(*start, "train.optimizer={kind='values'}")
    assert "unknown kind 'values' here: that of saccade " in table.err and "a table for another key" in table.err
