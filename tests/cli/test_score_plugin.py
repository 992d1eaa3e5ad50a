"""An attention score from outside the package, through every command, in multi-head and in recurrent attention."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from saccade.config.plugins import find_installed
from saccade.runs import WEIGHTS

PLUGIN = '''
import torch
from torch import nn
from torch.nn.functional import normalize

class Cosine(nn.Module):
    """Cosine similarity times a learned temperature of each head."""

    def __init__(self, query_dim: int, key_dim: int, heads: int, *, temperature: float = 5.0):
        super().__init__()
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), temperature))
        self.match = nn.Linear(query_dim, key_dim, bias=False) if query_dim != key_dim else nn.Identity()

    def forward(self, query, key):
        return self.temperature * normalize(self.match(query), dim=-1) @ normalize(key, dim=-1).mT

KINDS = {"cosine": Cosine}
'''
SMALL = [
    "train.steps=2", "train.valid_every=2", "data.train.0.examples=40", "data.valid=0.2", "tokenizer.size=60",
    "train.device=cpu", "predict.beam=2", "predict.max_length=4",
]  # fmt: skip
SYSTEMS = {
    "multi-head": [
        "dates", "reader.positions.kind=sinusoidal", "writer.positions.kind=alibi",
        "reader.stack.score.kind=cosine", "writer.stack.score.kind=cosine",
        "writer.stack.score.temperature=3.0", "reader.stack.dim=8", "writer.stack.dim=8", "reader.stack.heads=2",
        "writer.stack.heads=2", "reader.stack.ff=8", "writer.stack.ff=8", "reader.stack.layers=1",
        "writer.stack.layers=1", *SMALL,
    ],
    "recurrent": [
        "bahdanau", "writer.stack.attention=score", "writer.stack.score.kind=cosine", "writer.stack.local.window=2",
        "writer.tie=output",
        "reader.stack.dim=10", "writer.stack.dim=8", *SMALL,
    ],
}  # fmt: skip
COMMANDS = [
    ["predict", "own", "5 May 1994"],
    ["evaluate", "own", "--data", "embedded:dates"],
    ["view", "own", "5 May 1994"],
    ["serve", "own", "--port", "0"],
    ["train", "--resume", "own", "train.steps=3"],
]


PREDICT = ["predict", "own", "5 May 1994"]


def train(cli: Any, system: str, *more: str) -> Any:
    recipe, *overrides = SYSTEMS[system]
    result = cli("train", recipe, "--tiny", "--run", "own", "--verbose", *overrides, *more)
    assert result.code == 0, result.err
    return result


def ask(server: Any) -> dict[str, Any]:
    """The answers of the server that the command line made, without a socket."""
    from fastapi.testclient import TestClient

    with TestClient(server.config.app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/attention", json={"input": "5 May 1994"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_score_goes_through_all_commands(system, cli, tmp_path, monkeypatch):
    for module in ("saccade.cli.score", "saccade.score.api"):
        monkeypatch.setattr(f"{module}.MAX_EMBEDDED_PAIRS", 4)
    answers: list[dict[str, Any]] = []
    monkeypatch.setattr("saccade.serve.server.run_server", lambda server, listener: answers.append(ask(server)))
    (tmp_path / "cosine.py").write_text(PLUGIN)
    trained = train(cli, system, "--plugin", "cosine.py")
    assert "attention score Cosine does not declare static_shapes" in trained.err
    for command in COMMANDS:
        without = cli(*command)
        assert without.code == 2 and "needs the kind 'cosine' of the plugin cosine.py" in without.err, command
        result = cli(*command, "--plugin", "cosine.py")
        assert result.code == 0, (command, result.err)
    assert len(answers) == 1 and answers[0]["input"] == "5 May 1994" and answers[0]["maps"]
    weights = load_file(Path("runs", "own", WEIGHTS))
    learned = [tensor for name, tensor in weights.items() if name.endswith("score.temperature")]
    assert [tensor.shape[0] for tensor in learned] == {"multi-head": [2, 2, 2], "recurrent": [1]}[system]
    assert all((tensor != 5).all() and (tensor != 3).all() for tensor in learned)


def test_an_installed_package_brings_a_score(cli, tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "scores_of_mine-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "scores_of_mine.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scores_of_mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[saccade.plugins]\nmine = scores_of_mine\n")
    monkeypatch.syspath_prepend(site)
    find_installed.cache_clear()
    try:
        train(cli, "multi-head")
        assert cli(*PREDICT).code == 0
        (info / "entry_points.txt").unlink()
        find_installed.cache_clear()
        assert "the kind 'cosine' of the package scores_of_mine 1.0; install it" in cli(*PREDICT).err
    finally:
        find_installed.cache_clear()
