"""`saccade plan`."""

import json

import pytest
from safetensors.torch import load_file

from saccade.data.tokenization.tokenizers import Tokenizers


def test_plan_in_words(cli):
    result = cli("plan", "transformer", "--price", "2", "--gpus", "2")
    assert result.code == 0
    for line in (
        "transformer: 63,082,496 parameters, vocabulary 37,000",
        "FLOPs per token",
        "memory on one H200, 25,000 tokens in a batch",
        "memory per GPU on 2 GPUs",
    ):
        assert line in result.out.splitlines()
    rows = [line.split() for line in result.out.splitlines()]
    assert ["self-attention", "6,303,744", "6,303,744"] in rows
    assert any(row[:1] == ["cost"] and row[1].startswith("$") for row in rows)


def test_overrides_and_options_count(cli):
    result = cli("plan", "transformer", "reader.stack.layers=1", "--vocabulary", 100, "--gpu", "H200", "--json")
    found = json.loads(result.out)
    assert found["vocabulary"] == 100
    assert found["parameters"]["parts"]["self-attention"] == {"reader": 1_050_624, "writer": 6_303_744}
    assert found["memory_bytes"]["weights"] == 4 * found["parameters"]["total"]
    assert found["sharding"]["best"] == "one GPU"
    assert found["dollars"] is None


def test_a_run_is_planned_with_its_own_vocabulary(cli, language_model, monkeypatch):
    size = Tokenizers.load(language_model).source.size
    weights = load_file(language_model / "model.safetensors")
    monkeypatch.setenv("SACCADE_RUNS", str(language_model.parent))
    for name in (language_model.name, language_model, language_model / "recipe.toml"):
        found = json.loads(cli("plan", name, "--gpu", "H200", "--json").out)
        assert found["vocabulary"] == size < 40
        assert found["parameters"]["total"] == sum(tensor.numel() for tensor in weights.values())
    assert (
        json.loads(cli("plan", language_model, "--vocabulary", 99, "--gpu", "H200", "--json").out)["vocabulary"] == 99
    )
    files = ("tokenizer.kind=file", f"tokenizer.files=['{language_model / 'tokenizer.json'}']")
    assert json.loads(cli("plan", "gpt2", *files, "--gpu", "H200", "--json").out)["vocabulary"] == size


def test_unknown_estimates_are_reported(cli):
    result = cli("plan", "gnmt", "--gpus", 8)
    assert result.code == 0
    assert "not known for this kind of stack" in result.out
    assert "the MFU of this kind of stack was not measured; give --mfu" in result.out


def test_a_recipe_without_steps_needs_tokens(cli):
    changes = ("train.steps=none", "train.epochs=2", "--gpu", "H200")
    assert "the recipe has no train.steps; give --tokens" in cli("plan", "transformer", *changes).out
    assert "1,000,000 tokens" in cli("plan", "transformer", *changes, "--tokens", "1e6").out


def test_frozen_and_averaged_weights_are_reported(cli):
    out = cli("plan", "transformer", "freeze=reader", "writer.tie=none", "train.ema=0.99", "--gpu", "H200").out
    assert "37,858,304 of them frozen" in out
    assert "moving average" in out


def test_a_model_that_fits_nowhere(cli):
    size = [f"writer.stack.{item}" for item in ("layers=100", "dim=16384", "heads=128", "ff=65536")]
    out = cli("plan", "transformer", *size, "writer.tie=none", "--gpu", "T4").out
    assert "does not fit" in out
    assert "more GPUs" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "plan needs a recipe (`saccade recipes` lists them), a run, or --table"),
        (
            ("gpt2", "--table"),
            "--table takes no recipe, got 'gpt2'; leave one of the two out",
        ),
        (("transformer", "more"), "unexpected argument 'more'; expected key=value, such as train.steps=2000"),
        (("transformer", "--price", "-1"), "--price must be a number of at least 0, got -1"),
    ],
)
def test_mistakes_are_reported(cli, words, message):
    result = cli("plan", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


def test_table_has_the_notes_beside_our_counts(cli):
    out = cli("plan", "--table").out
    assert "214,245,376" in out
    rows = {line.split()[1]: line.split()[2] for line in out.splitlines() if line[:2] in ("91", "92")}
    assert out.startswith("row  model              recipe") and rows == {
        "XLNet-Large": "xlnet-large",
        "RoBERTa": "roberta-large",
    }
    assert "XLNet-Large: about 340M is BERT-Large's number" in out
    assert "$3,768,320" in out and "$3,735,552" in out
    found = json.loads(cli("plan", "--table", "--json").out)
    assert [model["row"] for model in found["models"]] == [88, 89, 90, 90, 91, 92, 93, 94, 95, 96, 97]
    assert {"xlnet-large", "roberta-large", "gpt2-xl"} <= {model["recipe"] for model in found["models"]}
    assert found["cost"]["utilisation"] == pytest.approx(0.31, abs=0.01)


def test_more_gpus_than_there_are_are_refused(cli):
    result = cli("plan", "dates", "--gpus", 2**63)
    assert (result.code, result.err) == (2, f"error: --gpus must be at most 1,000,000, got {2**63}\n")


def test_without_a_gpu_steps_are_measured_on_the_cpu(cli):
    out = cli("plan", "dates", "--tiny", "--gpu", "cpu", "train.batch_tokens=64", "data.train.0.examples=50").out
    assert "time on the CPU of this machine with 1 thread, measured in training steps of 64 tokens" in out
    assert "time on one H200" in out
