"""Runs of earlier releases load, predict what they predicted, and resume. `golden.py --store` writes such runs."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.cli import main

FOLDER = Path(__file__).parent
RUNS = sorted(path.parent for path in FOLDER.glob("*/*/expected.json"))
WAYS = {"greedy": ["--beam", "1"], "beam": ["--n-best", "2"]}


@pytest.fixture(params=RUNS, ids=lambda path: str(path.relative_to(FOLDER)))
def run(request, tmp_path, monkeypatch) -> Path:
    """A copy of a stored run, which is the working directory: paths of its data are relative to it."""
    copy = tmp_path / request.param.name
    shutil.copytree(request.param, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def expected(run) -> dict[str, Any]:
    return json.loads((run / "expected.json").read_text("utf-8"))


def close(found: Any, wanted: Any) -> None:
    """Equal but for rounding, which is another one on other CPUs; dictionaries may have more keys than then."""
    if isinstance(wanted, dict):
        for key in wanted:
            close(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            close(one, other)
    else:
        assert found == (pytest.approx(wanted, rel=1e-3, abs=1e-4) if isinstance(wanted, float) else wanted)


def find_released_versions() -> set[str]:
    """Minor versions that CHANGELOG.md has a section of, from 0.8 on, the first one with stored runs."""
    text = (FOLDER.parent.parent / "CHANGELOG.md").read_text("utf-8")
    found = re.findall(r"^## \[?(\d+)\.(\d+)\.\d+\b", text, re.MULTILINE)
    return {f"{major}.{minor}" for major, minor in found if (int(major), int(minor)) >= (0, 8)}


def test_every_release_has_stored_runs_of_several_kinds():
    """A release without them: .venv/bin/python benchmarks/golden.py --store, with the code of that release."""
    stored = {path.name: {run.name for run in path.iterdir()} for path in FOLDER.glob("[0-9]*")}
    released = find_released_versions()
    assert {"0.8", "0.9"} <= released == stored.keys()
    assert all(names >= {"gpt2", "transformer", "vit"} for names in stored.values())


def test_every_stored_folder_is_tested():
    """A run without expected.json would be stored, but neither predicted with nor resumed."""
    assert sorted(path for path in FOLDER.glob("[0-9]*/*") if path.is_dir()) == RUNS


def test_a_stored_run_loads_in_python(run, expected):
    assert len(saccade.load(run).predict(expected["inputs"])) == len(expected["inputs"])


@pytest.mark.parametrize("way", WAYS)
def test_a_stored_run_predicts_what_it_predicted(run, expected, way, capsys):
    with pytest.raises(SystemExit) as left:
        main(["predict", str(run), "--json", *WAYS[way], *expected["inputs"]])
    assert not left.value.code
    close([json.loads(line) for line in capsys.readouterr().out.splitlines()], expected["predictions"][way])


def test_a_stored_run_resumes_where_it_was(run, expected):
    """The same batches, learning rates and dropout as if the release that wrote it had gone on."""
    steps, wanted = expected["steps"], expected["resumed"]
    before = trained(run)
    saccade.train(resume=run, overrides=[f"train.steps={wanted[-1]['step']}", "train.report_every=1"])
    after = trained(run)
    assert after[: len(before)] == before
    close(after[len(before) :], wanted)
    losses = [line["loss"] for line in after]
    assert before[-1]["step"] == steps
    assert all(map(math.isfinite, losses))
    assert min(losses[len(before) :]) < losses[0] / 2
    assert (run / "checkpoints" / f"step-{wanted[-1]['step']}").is_dir()


def trained(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line for line in lines if line["event"] == "train"]
