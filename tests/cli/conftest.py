"""Fixtures that run the command line in this process and return its output and exit code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from saccade.cli import main
from saccade.config.load import load, save
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.model.build.model import build
from saccade.model.run import named_weights, write_tensors
from saccade.runs import RECIPE, WEIGHTS

PAIRS = [("3 May 1999", "1999-05-03"), ("21 June 2008", "2008-06-21")]


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch) -> Callable[..., Result]:
    """Run one command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACCADE_RUNS", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        return Result(int(left.value.code or 0), *capsys.readouterr())

    return run


def make_run(folder: Path, *, seed: int, more: Sequence[str] = ()) -> Path:
    """Create an untrained run with the files that training writes."""
    small = [
        f"{part}.stack.{key}" for part in ("reader", "writer") for key in ("dim=8", "heads=2", "ff=11", "layers=2")
    ]
    recipe = load(
        "dates", overrides=[*small, f"train.seed={seed}", "predict.max_length=7", "predict.min_length=2", *more]
    )
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: PAIRS)
    torch.manual_seed(seed)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    folder.mkdir(parents=True)
    tokenizers.save(folder)
    write_tensors(named_weights(model), folder / WEIGHTS)
    save(recipe, folder / RECIPE)
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("cli") / "a", seed=1)


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """A second run with the same vocabulary and other weights."""
    return make_run(tmp_path_factory.mktemp("cli") / "b", seed=2)


@pytest.fixture(scope="session")
def language_model(tmp_path_factory) -> Path:
    """An untrained language model."""
    folder = tmp_path_factory.mktemp("language") / "a"
    small = ["dim=8", "heads=2", "ff=11"]
    changes = [*(f"writer.stack.{change}" for change in small), "predict.max_length=6", "predict.sample=false"]
    recipe = load("gpt2", tiny=True, overrides=[*changes, "writer.tie=none"])
    tokenizers = train_tokenizers(recipe.tokenizer, lambda: [("abc\ndef g.",)])
    torch.manual_seed(5)
    model = build(recipe, source_size=tokenizers.source.size, target_size=tokenizers.target.size)
    with torch.no_grad():
        model.writer.output.weight.mul_(4.0)
    folder.mkdir()
    tokenizers.save(folder)
    write_tensors(named_weights(model), folder / WEIGHTS)
    save(recipe, folder / RECIPE)
    return folder


@pytest.fixture
def new_run() -> Callable[..., Path]:
    return make_run


@pytest.fixture
def pairs() -> list[tuple[str, str]]:
    return PAIRS
