"""LoRA: only the added matrices are trained, the run is an ordinary one, and it can be resumed."""

import pytest
import small
import torch
from safetensors.torch import load_file
from small import weights

from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.predict.predictors.predictor import Predictor
from saccade.train.transfer.lora import add_lora, merge_lora_weights

SHORT = {"steps": 1, "valid_every": 9, "save_every": 9, "accumulate": 1}
LORA = "train.lora={rank=2, alpha=6.0}"


@pytest.fixture
def earlier(fit):
    return fit("earlier", **SHORT)


def build_model(overrides, **settings):
    recipe = small.api.override(small.small(**settings), overrides)
    return recipe, build(recipe, source_size=13, target_size=13)


def test_only_additions_are_trained_and_so_many():
    """Self-attention, cross-attention and feed-forward of one reader block and one writer block, 14 wide, 17 inside."""
    recipe, model = build_model(["init=x", "train.lora={rank=3}"])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    notes = add_lora(model, recipe)
    one, feed = (3 * 14 + 14) + (14 + 14), 2 * (14 + 17)  # q, k, v together and the output; up and down
    cross = (14 + 14) + (2 * 14 + 14) + (14 + 14)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == 3 * (2 * one + 2 * feed + cross)
    assert f"{trained:,} parameters are trained, beside 11 frozen matrices" in notes[0]
    plain = merge_lora_weights({name: parameter.detach() for name, parameter in model.named_parameters()}, recipe)
    assert plain.keys() == before.keys()
    assert all(torch.equal(plain[name], before[name]) for name in before)


@pytest.mark.parametrize(("modules", "count"), [("['attention']", 7), ("['feedforward']", 4)])
def test_which_matrices_is_said(modules, count):
    recipe, model = build_model(["init=x", f"train.lora={{target_modules={modules}}}"])
    assert f"beside {count} frozen" in add_lora(model, recipe)[0]


def test_the_run_is_an_ordinary_one_and_the_rest_stays(fit, earlier):
    run = fit("tuned", overrides=[f"init={earlier}", LORA], steps=8)
    before, after = load_file(earlier / "model.safetensors"), load_file(run / "model.safetensors")
    assert before.keys() == after.keys()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert all(any(part in name for part in (".self.", ".cross.", ".feedforward.")) for name in before.keys() - same)
    assert "reader.embedding.tokens.weight" in same
    assert "reader.stack.blocks.0.feedforward.up.weight" not in same
    assert Predictor.load(run).predict(["abc"])


def test_merged_weights_equal_the_trained_ones(fit, earlier, monkeypatch):
    """The loss of the last validation equals that of the written weights."""
    run = fit("tuned", overrides=[f"init={earlier}", LORA], valid_every=8, steps=8)
    line = [line for line in small.read_metrics(run) if line["event"] == "valid"][-1]
    again = fit("again", overrides=[f"init={run}", "train.schedule.lr=1e-30"], valid_every=1, steps=1)
    first = next(line for line in small.read_metrics(again) if line["event"] == "valid")
    assert first["nll"] == pytest.approx(line["nll"], abs=1e-6)


def test_a_resumed_run_ends_with_the_same_bytes(fit, earlier):
    whole = fit("whole", overrides=[f"init={earlier}", LORA], steps=12)
    part = fit("part", overrides=[f"init={earlier}", LORA], steps=5)
    fit("part", resume=True, overrides=["train.steps=12"])
    assert weights(part) == weights(whole)
    with pytest.raises(SaccadeError, match=r"train.lora cannot change when a run is resumed"):
        fit("part", resume=True, overrides=["train.lora.rank=5"])


def test_a_moving_average_and_a_mean_of_checkpoints_are_joined_too(fit, earlier):
    overrides = [f"init={earlier}", LORA, "train.ema=0.9", "train.average={kind='last', n=2}", "train.save_every=4"]
    run = fit("tuned", overrides=overrides, steps=8)
    assert load_file(run / "model.safetensors").keys() == load_file(earlier / "model.safetensors").keys()


def test_what_lora_cannot_do_is_reported(fit, earlier):
    with pytest.raises(SaccadeError, match="train.lora adapts weights that were trained before; give init=RUN"):
        fit(overrides=[LORA])
    with pytest.raises(SaccadeError, match="leave freeze out"):
        fit(overrides=[f"init={earlier}", LORA, "freeze=reader"])
    recurrent = {"kind": "recurrent", "layers": 1, "dim": 8}
    recipe, model = build_model(
        ["init=x", LORA], parts={"reader": {"stack": recurrent}, "writer": {"stack": recurrent}}
    )
    with pytest.raises(SaccadeError, match="this model has no such matrices; it needs a Transformer"):
        add_lora(model, recipe)
