"""Tokenizer, optimizer, schedule, augmentation and data format from one file outside the package."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from saccade.config.load import validate
from saccade.config.plugins import load_plugins
from saccade.data.tokenization.tokenizer import SOURCE_FILE
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.errors import SaccadeError
from saccade.train.optimizer import build_optimizer, get_optimizer_tensors
from saccade.train.schedule import build_schedule

PLUGIN = '''
import tokenizers
import torch
from saccade.data.tokenization.tokenizer import SPECIAL_TOKENS, UNKNOWN


def read_blocks(path, *, separator: str = "="):
    """Records of lines `column = value`, with an empty line after each."""
    for block in path.read_text("utf-8").strip().split("\\n\\n"):
        pairs = (line.split(separator, 1) for line in block.splitlines())
        yield {column.strip(): value.strip() for column, value in pairs}


def learn_letters(texts, size, *, lower: bool = False):
    """One token for each letter; the space is a letter too."""
    letters = sorted({letter for text in texts for letter in (text.lower() if lower else text)})
    names = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *letters][:size])}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token=SPECIAL_TOKENS[UNKNOWN]))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    built.decoder = tokenizers.decoders.Fuse()
    if lower:
        built.normalizer = tokenizers.normalizers.Lowercase()
    return built


class HeavyBall(torch.optim.Optimizer):
    """Momentum, and a counter that is a plain number."""

    def __init__(self, params, *, momentum: float = 0.9, weight_decay: float = 0.0):
        super().__init__(params, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["times"] = state.get("times", 0) + 1
                velocity = state.setdefault("velocity", torch.zeros_like(parameter))
                velocity.mul_(group["momentum"]).add_(parameter.grad / state["times"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * velocity)


def triangle(step, total, *, peak: float = 0.5):
    """A factor of the learning rate that rises to 1 at the share `peak` of all steps, then falls to 0."""
    place = step / total
    return place / peak if place < peak else (1 - place) / (1 - peak)


def repeat_first(batch, generator, *, prob: float = 0.1):
    """Overwrite source tokens by the first one, at random."""
    source = batch["source"]
    chosen = torch.rand(source.ids.shape, generator=generator, device=source.ids.device) < prob
    ids = torch.where(chosen, source.ids[:, :1], source.ids)
    return type(batch)({**batch.fields, "source": type(source)(ids, source.mask)}, batch.counts)


KINDS = {"blocks": read_blocks, "letters": learn_letters, "heavy-ball": HeavyBall, "triangle": triangle,
         "repeat-first": repeat_first}
'''
SIZES = [f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("dim=8", "heads=2", "ff=8", "layers=1")]
OWN = [
    "data.train.0.format=blocks", "tokenizer.kind=letters", "tokenizer.lower=true", "train.optimizer.kind=heavy-ball",
    "train.optimizer.momentum=0.5", "train.schedule.kind=triangle", "train.schedule.lr=0.05",
    "train.schedule.peak=0.25", "train.augment=[{kind='repeat-first', prob=0.3}]",
]  # fmt: skip
TRAIN = [
    "train", "dates", "--data", "a.blocks", "--valid", "b.blocks", "--plugin", "plugin.py", "train.steps=8",
    "train.valid_every=4", "train.save_every=2", "train.keep_checkpoints=9", "train.batch_tokens=64",
    "train.device=cpu", *SIZES, *OWN,
]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    rows = [f"source = Day {n} x\ntarget = {n:02d}\n" for n in range(40)]
    (tmp_path / "a.blocks").write_text("\n".join(rows))
    (tmp_path / "b.blocks").write_text("\n".join(rows[:8]))
    return tmp_path


@pytest.fixture
def kinds(files):
    return load_plugins(files / "plugin.py")


def test_kinds_of_training_come_from_a_file(cli, files, monkeypatch):
    trained = cli(*TRAIN, "--run", "own")
    assert trained.code == 0, trained.err
    needed = {item["kind"] for item in json.loads((files / "runs/own/plugins.json").read_text())}
    assert needed == {"blocks", "letters", "heavy-ball", "triangle", "repeat-first"}
    vocabulary = json.loads((files / "runs/own" / SOURCE_FILE).read_text())["model"]["vocab"]
    assert "d" in vocabulary and "D" not in vocabulary  # its setting `lower` arrived
    monkeypatch.setattr("saccade.serve.server.run_server", lambda server, listener: None)
    for command in (["predict", "own", "Day 3 x"], ["evaluate", "own", "--data", "b.blocks"],
                    ["compare", "own", "own", "--data", "b.blocks"], ["view", "own", "Day 3 x"],
                    ["serve", "own", "--port", "0"]):  # fmt: skip
        assert cli(*command).err.rstrip().endswith("; add --plugin plugin.py"), command
        result = cli(*command, "--plugin", "plugin.py")
        assert result.code == 0, result.err
    # Resumed from the middle it ends with the same bits: state of the optimizer, rate and augmentation continue.
    weights = load_file(files / "runs/own/model.safetensors")
    shutil.copytree(files / "runs/own", files / "runs/again")
    for step in (6, 8):
        shutil.rmtree(files / f"runs/again/checkpoints/step-{step}")
    resumed = cli("train", "--resume", "again", "--plugin", "plugin.py")
    assert resumed.code == 0 and "resumes from step 4" in resumed.err, resumed.err
    again = load_file(files / "runs/again/model.safetensors")
    assert all(weights[name].equal(again[name]) for name in weights)


def test_an_own_optimizer_decays_matrices_alone(kinds):
    settings = validate({"train": {"optimizer": {"kind": "heavy-ball", "weight_decay": 0.5}}}, kinds=kinds).train
    layer = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(settings.optimizer, layer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    assert get_optimizer_tensors(optimizer, layer)["times#number:weight"].dtype == torch.int64


def test_an_own_schedule_is_a_factor_of_the_rate(kinds):
    table = {"kind": "triangle", "lr": 0.01, "peak": 0.25}
    rate = build_schedule(validate({"train": {"schedule": table}}, kinds=kinds).train.schedule, dim=8, total=8)
    assert [rate(step) for step in (0, 1, 2, 5, 8)] == pytest.approx([0.005, 0.005, 0.01, 0.005, 0.0])


def test_wrong_results_of_own_kinds_are_one_line(tmp_path):
    def load(**changes):
        return validate(changes, kinds={"wrong": lambda *arguments: 3, "unnumbered": build_unnumbered})

    with pytest.raises(SaccadeError, match=r"the optimizer 'wrong' must return a torch.optim.Optimizer, got int"):
        build_optimizer(load(train={"optimizer": {"kind": "wrong"}}).train.optimizer, torch.nn.Linear(2, 2))
    with pytest.raises(SaccadeError, match=r"the tokenizer 'wrong' must return a tokenizers.Tokenizer, got int"):
        train_tokenizers(load(tokenizer={"kind": "wrong"}).tokenizer, lambda: [("a", "b")])
    with pytest.raises(SaccadeError, match=r"must have the token .* as number 0, got None; train it with special_"):
        train_tokenizers(load(tokenizer={"kind": "unnumbered"}).tokenizer, lambda: [("a", "b")])
    with pytest.raises(SaccadeError, match=r"the state 'name' of the optimizer is a str, which cannot be saved"):
        layer = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer.state[layer.weight]["name"] = "x"
        get_optimizer_tensors(optimizer, layer)


def build_unnumbered(texts, size):
    import tokenizers

    return tokenizers.Tokenizer(tokenizers.models.BPE())


def test_wrong_records_of_a_format_are_one_line(cli, files):
    (files / "wrong.py").write_text("KINDS = {'wrong': lambda path: [1], 'nothing': lambda path: []}")
    start = ["train", "dates", "--data", "a.blocks", "--plugin", "wrong.py", "data.valid=0"]
    result = cli(*start, "data.train.0.format=wrong")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "a.blocks:1: the format 'wrong' must yield records {column: value}, got int" in result.err
    assert "expected at least one record of the format 'nothing'" in cli(*start, "data.train.0.format=nothing").err
    unknown = cli(*start, "data.train.0.format=wrogn")
    assert "unknown format 'wrogn'; did you mean 'wrong'?" in unknown.err and unknown.code == 2
    two = cli("train", "dates", "--data", "a.blocks", "b.blocks", "--plugin", "wrong.py", "data.train.0.format=wrong")
    assert "a corpus of the format 'wrong' is one file, got a.blocks and b.blocks" in two.err


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"task": "language-model", "reader": {"kind": "none"}},
            '"token-dropout" is for source tokens, got',
        ),
        ({"tokenizer": {"cls_token": True}}, '"token-dropout" would replace special tokens'),
    ],
)
def test_token_dropout_needs_plain_source_tokens(tables, message):
    with pytest.raises(SaccadeError, match=message):
        validate({"train": {"augment": [{"kind": "token-dropout"}]}, **tables})
