"""Every system is trained, used and evaluated on each device, and computes there what it computes on a CPU.

A GPU runs all systems in the fast tests. A CPU runs a few there, so that this file is tested everywhere, and all of
them in the slow ones, where its engines with packed weights are compared with plain modules.
"""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from devices import DEVICES

import saccade
from saccade.config.load import list_recipes
from saccade.exchange.exporting import export_run
from saccade.model.run import load_run
from saccade.predict.predictors.predictor import Predictor
from saccade.score.evaluate import evaluate_corpora

# At tiny size these have the form of transformer, bert, gpt2 or t5.
SAME_FORM = (
    "bert-large", "gpt2-large", "gpt2-medium", "gpt2-xl", "megatron", "multi30k", "t5-base", "tatoeba",
    "transformer-big", "turing-nlg",
)  # fmt: skip
SYSTEMS = [name for name in list_recipes() if name not in SAME_FORM]
FAST = ("bert", "gpt2", "transformer", "vit")  # on a CPU
EXPORTED = ("bert", "gpt2", "llama", "t5", "vit", "xlnet")
FEW = [
    "train.steps=2", "train.valid_every=2", "train.schedule.warmup_steps=1", "train.valid_predictions=2",
    "train.batch_tokens=512", "predict.max_length=8", "data.train.0.examples=100",
]  # fmt: skip
NEAR = {"rel": 1e-3, "abs": 2e-3}  # float32, summed in another order
HASHING = ("reformer",)  # in float64, since rounding in float32 may decide in which bucket a vector is


def list_cases() -> list:
    """All systems on all devices; those of the slow suite are marked."""
    cases = []
    for device in DEVICES:
        for name in SYSTEMS:
            marks = [pytest.mark.slow] if device == "cpu" and name not in FAST else getattr(device, "marks", ())
            cases.append(pytest.param(name, "cpu" if device == "cpu" else "cuda", marks=marks))
    return cases


def train_few_steps(name: str, run: Path, device: str) -> Predictor:
    small = [] if name == "dates" else ["data.valid.0.examples=8"]  # dates takes a share of its training data
    return saccade.train(name, tiny=True, run=run, overrides=[*FEW, *small, f"train.device={device}"])


def load_plain(run: Path) -> Predictor:
    """The reference: the model on a CPU as it was trained, without packed weights."""
    loaded = load_run(run)
    factory = loaded.recipe.task.get_predictor(loaded.recipe)
    return factory(loaded.model, recipe=loaded.recipe, tokenizers=loaded.tokenizers)


def read_losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32")
@pytest.mark.parametrize(("name", "device"), list_cases())
def test_a_system_computes_what_it_computes_on_a_cpu(name: str, device: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # 10 bits of a product would be kept
    run = tmp_path / "run"
    predictor = train_few_steps(name, run, device)
    assert predictor.device.type == device
    assert (losses := read_losses(run)) and all(math.isfinite(loss) for loss in losses)

    reference, task = load_plain(run), predictor.recipe.task
    if name in HASHING:
        predictor.model.double()
        reference.model.double()
    valid = predictor.recipe.data.valid
    corpora = valid if isinstance(valid, tuple) else predictor.recipe.data.train
    pairs = task.get_examples(predictor, corpora, count=3, synthetic_count=4)
    inputs = [source for source, _ in pairs]
    if predictor.supports_embedding:
        numpy.testing.assert_allclose(predictor.embed(inputs), reference.embed(inputs), rtol=1e-3, atol=1e-3)
    elif task.name != "play":  # actions have values and no probabilities
        for batch in (pairs, pairs[:1]):
            assert predictor.score(batch) == pytest.approx(reference.score(batch), **NEAR)
    if not (predictor.supports_embedding and predictor.medium):  # encoders of media have no other outputs
        assert len(predictor.predict(inputs)) == len(inputs)

    target = task.get_forced_target(pairs[0][1])
    ours, theirs = (model.attention(inputs[0], target) for model in (predictor, reference))
    assert ours.maps.keys() == theirs.maps.keys()
    if ours.text == theirs.text:  # with no given target, outputs that are equally probable may differ
        for address, weights in ours.maps.items():
            torch.testing.assert_close(weights.cpu(), theirs.maps[address], rtol=1e-3, atol=1e-3)

    found, expected = (
        evaluate_corpora(model, corpora, synthetic_count=4).to_dict()["scores"] for model in (predictor, reference)
    )
    assert found.keys() == expected.keys() and found
    if "loss" in found:
        assert found["loss"] == pytest.approx(expected["loss"], **NEAR)
    if name in EXPORTED:
        folder, _ = export_run(run, tmp_path / "export")
        assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_is_resumed_on_another_device(device: str, tmp_path: Path) -> None:
    """Checkpoints have the states of optimizer and random number generators of the device that wrote them."""
    run = tmp_path / "run"
    train_few_steps("gpt2", run, device)
    for steps, there in ((4, "cpu"), (6, device)):
        resumed = saccade.train(resume=run, overrides=[f"train.steps={steps}", f"train.device={there}"])
        assert resumed.device.type == there
    losses = read_losses(run)
    assert len(losses) == len(set(losses)) >= 3 and all(math.isfinite(loss) for loss in losses)
