"""`saccade predict` with an encoder, and --embed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import saccade

SMALL = ["train.steps=2", "data.train.0.examples=200", "data.valid.0.examples=20", "train.batch_tokens=512"]
Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "run"
    saccade.train("roberta", tiny=True, run=path, overrides=SMALL)
    return path


def test_masked_tokens_are_predicted_with_probabilities(run: Path, cli: Cli) -> None:
    lines = cli("predict", run, "The dog [MASK].").out.splitlines()
    assert len(lines) == 5
    numbers = [float(line.split("\t")[1]) for line in lines]
    assert numbers == sorted(numbers, reverse=True) and 0 < numbers[0] <= 1
    found = json.loads(cli("predict", run, "The dog [MASK].", "--json", "--n-best", "2").out)
    assert len(found["candidates"]) == 2 and found["fillings"]


def test_embeddings_come_as_lines_or_as_an_array(run: Path, cli: Cli, tmp_path: Path) -> None:
    texts = ["The dog sleeps.", "A cat."]
    lines = [json.loads(line) for line in cli("predict", run, *texts, "--embed", "mean").out.splitlines()]
    assert [line["input"] for line in lines] == texts
    assert cli("predict", run, *texts, "--embed", "mean", "-o", "x.npy").code == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), [line["embedding"] for line in lines], atol=1e-6)
    assert cli("predict", run, *texts, "--embed", "first", "-o", "x.jsonl").code == 0
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 2


def test_evaluate_reports_the_pseudo_perplexity(run: Path, cli: Cli) -> None:
    found = json.loads(cli("evaluate", run, "--json").out)
    assert found["scores"].keys() == {"loss", "pseudo_perplexity"} and found["documents"] == 20


def test_view_shows_how_an_encoder_reads(run: Path, cli: Cli) -> None:
    found = cli("view", run, "The dog [MASK].")
    assert found.code == 0 and "reader.stack.blocks.1.self" in found.out


def test_plan_counts_the_output_head_for_masked_tokens_only(cli: Cli) -> None:
    found = json.loads(cli("plan", "bert", "--json").out)
    flops = found["flops_per_token"]
    assert found["parameters"]["total"] == 110_106_428 and found["length"] == 512
    assert flops["forward"] == pytest.approx(flops["source"] + 0.15 * flops["target"])
    assert 10e9 < found["memory_bytes"]["peak"] < 20e9 and found["step_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a dog"], "line 1 has no [MASK] to fill in"),
        (["a dog", "--embed", "best"], "texts are embedded by one of mean, first, got 'best'"),
    ],
)
def test_wrong_input_is_reported_in_one_line(run: Path, cli: Cli, words: list[str], message: str) -> None:
    found = cli("predict", run, *words)
    assert found.code == 2 and message in found.err and found.err.count("\n") == 1


def test_other_models_have_no_embeddings(cli: Cli, tmp_path: Path) -> None:
    saccade.train("gpt2", tiny=True, run=tmp_path / "run", overrides=SMALL)
    found = cli("predict", tmp_path / "run", "a", "--embed", "mean")
    assert found.code == 2 and '--embed is for encoders (task = "encode"), got task = "language-model"' in found.err
