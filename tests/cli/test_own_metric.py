"""A metric of one's own, from a file outside the package: trained by, resumed, evaluated, compared and served."""

import json
from pathlib import Path

import pytest

PLUGIN = '''
from saccade.score.metrics import MeanMetric, Metric


class Overlap(MeanMetric):
    name = "overlap"
    title = "overlap %"
    signature = "characters shared with the reference"
    decimals = 3

    def score_example(self, output, reference):
        return 100 * len({*output} & {*reference}) / max(1, len({*output} | {*reference}))


class Scripted(Metric):
    """Gives the next of some values at each validation."""

    def __init__(self, name, *, higher_is_better, values):
        self.name, self.higher_is_better, self.values = name, higher_is_better, values

    def compute(self, predictions):
        return self.values.pop(0)


KINDS = {
    "overlap": Overlap,
    "low": Scripted("low", higher_is_better=False, values=[5, 1, 3, 0.5]),
    "high": Scripted("high", higher_is_better=True, values=[1, 5, 3, 9]),
    "not-a-number": Scripted("not-a-number", higher_is_better=True, values=[float("nan")]),
}
'''
STACKS = [f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("dim=8", "heads=2", "ff=8", "layers=1")]
TRAIN = [
    "train", "dates", "--tiny", "--run", "own", *STACKS, "train.valid_every=1", "train.save_every=1",
    "train.valid_predictions=4", "data.train.0.examples=50", "data.valid=0.2", "tokenizer.size=60", "train.device=cpu",
    "predict.max_length=7", "train.schedule={kind='constant', lr=0.01, warmup_steps=0}",
]  # fmt: skip


@pytest.fixture
def own(cli, tmp_path):
    """The command line in a folder with a plugin and files of outputs and references."""
    (tmp_path / "own.py").write_text(PLUGIN + f"# {tmp_path.name}\n")  # its scripted values are used up once
    (tmp_path / "hyp").write_text("abc\nabd\n")
    (tmp_path / "ref").write_text("abc\nABC\n")
    return cli


def read_lines(event: str) -> list[dict]:
    lines = map(json.loads, Path("runs/own/metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize(("name", "end"), [("low", 0.5), ("high", 9)])
def test_the_best_checkpoint_is_that_of_an_own_metric(own, name, end):
    settings = [f"train.metric={name}", "train.steps=9", "train.patience=1", "train.average={kind='best', n=2}"]
    result = own(*TRAIN, *settings, "--plugin", "own.py")
    assert result.code == 0, result.err
    lines = read_lines("valid")
    assert [line["best"] for line in lines] == [True, True, False]  # patience ends the training
    losses = [line["loss"] for line in lines]
    assert losses.index(min(losses)) == 2  # so that the loss would have chosen another one
    [average] = read_lines("average")
    assert (average["steps"], average[name], average["chosen"]) == ([2, 3], end, True)
    assert f"| {name} | {end} |" in Path("runs/own/card.md").read_text()
    assert f"{name} {end:.2f}" in own("runs").out


def test_a_metric_that_gives_no_number_ends_in_one_line(own):
    result = own(*TRAIN, "train.metric=not-a-number", "train.steps=1", "--plugin", "own.py")
    assert (result.code, result.err.splitlines()[-1]) == (
        2,
        "error: metric 'not-a-number' gave nan for 4 examples, expected a finite number; "
        "is it divided by a count that can be 0?",
    )


COMMANDS = [
    ["predict", "own", "5 May 1994"],
    ["evaluate", "own", "--data", "embedded:dates", "--metrics", "bleu,overlap", "--output", "outputs"],
    ["compare", "own", "own", "--data", "embedded:dates", "--metric", "overlap"],
    ["view", "own", "5 May 1994"],
    ["train", "--resume", "own", "train.steps=3"],
    ["serve", "own", "--port", "0"],
]


def test_every_command_takes_a_run_with_an_own_metric(own, monkeypatch):
    for module in ("saccade.cli.score", "saccade.score.api"):
        monkeypatch.setattr(f"{module}.MAX_EMBEDDED_PAIRS", 4)
    monkeypatch.setattr("saccade.serve.server.run_server", lambda server, listener: None)
    assert own(*TRAIN, "train.metric=overlap", "train.steps=2", "--plugin", "own.py").code == 0
    printed = {}
    for command in COMMANDS:
        without = own(*command)
        assert (without.code, without.err.count("\n")) == (2, 1), command
        assert "needs the kind 'overlap' of the plugin own.py (sha256 " in without.err, command
        brought = own(*command, "--plugin", "own.py")
        assert brought.code == 0, brought.err
        printed[command[0]] = brought.out
    assert len(read_lines("valid")) == 3 and all("overlap" in line for line in read_lines("valid"))
    name, value, *signature = printed["evaluate"].splitlines()[1].split()
    assert (name, len(value.partition(".")[2]), signature[0]) == ("overlap", 3, "characters")
    assert printed["compare"].split("\n")[0].split()[:3] == ["run", "overlap", "%"]
    assert "+0.000 [+0.000, +0.000]" in printed["compare"]


def test_files_are_scored_by_an_own_metric(own):
    files = ["evaluate", "--hyp", "hyp", "--ref", "ref", "--metrics", "overlap", "--plugin", "own.py"]
    assert own(*files).out.split()[:2] == ["overlap", "50.000"]
    assert own(*files, "--lowercase").out.split()[:2] == ["overlap", "75.000"]
    scores = json.loads(own(*files, "--json").out)["scores"]
    assert scores == {"overlap": {"value": 50.0, "signature": "characters shared with the reference"}}
    message = own(*files[:-2]).err
    assert message.startswith("error: unknown metric 'overlap'; expected one of bleu, chrf, ")
    assert message.endswith("; your own: --plugin FILE.py, or kinds={'overlap': ...} in Python\n")


def test_a_metric_without_values_per_example_is_not_compared(own, monkeypatch):
    assert own(*TRAIN, "train.steps=1", "train.metric=loss").code == 0
    result = own("compare", "own", "own", "--data", "embedded:dates", "--metric", "low", "--plugin", "own.py")
    assert result.code == 2
    assert "only by bleu or accuracy or wer or cer or letters or rouge1 or" in result.err
    assert " or overlap; 'low' has no statistics per" in result.err
