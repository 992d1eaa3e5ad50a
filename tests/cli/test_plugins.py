"""`--plugin FILE.py`: kinds from outside the package, on every command that loads a run."""

import subprocess
import sys

import pytest

PLUGIN = '''
import torch
from torch import nn

class Bag(nn.Module):
    """A stack without attention: each state and the mean of all."""

    def __init__(self, *, dim: int):
        super().__init__()
        self.dim, self.mix = dim, nn.Linear(2 * dim, dim)

    def forward(self, x, mask, memory=None, state=None):
        mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        return self.mix(torch.cat([x, mean.expand_as(x)], -1)), mask, state, {}

KINDS = {"bag": Bag}
'''
TRAIN = [
    "train", "dates", "--tiny", "--run", "own", "reader.stack.kind=bag", "reader.stack.dim=8", "writer.stack.dim=8",
    "writer.stack.heads=2", "writer.stack.ff=8", "writer.stack.layers=1", "train.steps=2", "train.valid_every=2",
    "data.train.0.examples=50", "data.valid=0.2", "tokenizer.size=60", "train.device=cpu",
]  # fmt: skip


@pytest.fixture
def trained(cli, tmp_path):
    (tmp_path / "bag.py").write_text(PLUGIN)
    result = cli(*TRAIN, "--plugin", "bag.py")
    assert result.code == 0, result.err
    return cli


COMMANDS = [
    ["predict", "own", "5 May 1994"],
    ["evaluate", "own", "--data", "embedded:dates", "max_length=3"],
    ["compare", "own", "own", "--data", "embedded:dates"],
    ["view", "own", "5 May 1994"],
    ["backtranslate", "own", "--input", "embedded:dates", "--output", "back.tsv", "max_length=3"],
    ["train", "--resume", "own", "train.steps=3"],
    ["export", "own", "out"],
    ["plan", "own"],
    ["serve", "own", "--port", "0"],
    ["lectures", "trace", "own", "5 May"],
]
REFUSED = {
    "export": "no Hugging Face architecture",
    "plan": "plan supports only the kinds that come with",
    "lectures": "has no self-attention to trace",
}


def test_commands_ask_for_the_plugin_and_take_it(trained, monkeypatch):
    for module in ("saccade.cli.score", "saccade.score.api"):
        monkeypatch.setattr(f"{module}.MAX_EMBEDDED_PAIRS", 4)
    monkeypatch.setattr("saccade.serve.server.run_server", lambda server, listener: None)
    for command in COMMANDS:
        without = trained(*command)
        assert (without.code, without.err.count("\n")) == (2, 1), command
        assert "needs the kind 'bag' of the plugin bag.py (sha256 " in without.err, command
        assert without.err.rstrip().endswith("; add --plugin bag.py"), command
        brought = trained(*command, "--plugin", "bag.py")
        if (name := command[0]) in REFUSED:  # by the command itself, once it has the plugin
            assert (brought.code, REFUSED[name] in brought.err) == (2, True), brought.err
        else:
            assert brought.code == 0, brought.err


def test_a_file_in_the_working_folder_is_not_run_by_itself(trained, tmp_path):
    (tmp_path / "bag.py").write_text("raise SystemExit('was run')")
    assert "needs the kind 'bag'" in trained("predict", "own", "5 May 1994").err


def test_help_loads_no_plugin():
    code = "import sys; from saccade.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "from saccade.config import plugins; print(plugins.find_installed.cache_info().currsize, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0"
