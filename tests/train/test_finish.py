"""Which weights a run ends with, and its model card."""

import pytest
import small
import torch
from safetensors.torch import load_file

from saccade.train import checkpoint, loop, validate
from saccade.train.signals import Interrupted

STEPS = {"steps": 6, "valid_every": 3, "save_every": 2, "report_every": 2, "accumulate": 1}


def steps(run):
    return checkpoint.list_steps(run / "checkpoints")


def average_tensors(run, *chosen):
    tensors = [load_file(run / f"checkpoints/step-{step}/model.safetensors") for step in chosen]
    return {name: torch.stack([part[name] for part in tensors]).mean(0) for name in tensors[0]}


@pytest.mark.parametrize(("mean", "better"), [(0.5, True), (1.5, False)])
def test_mean_of_the_best_is_used_only_where_validation_finds_it_better(fit, monkeypatch, mean, better):
    losses = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0, mean])
    for module in (validate, small.finish):
        monkeypatch.setattr(module, "evaluate_weights", lambda s, weights: {"loss": next(losses)})

    run = fit(
        **{**STEPS, "valid_every": 1, "keep_checkpoints": 1, "save_every": 99, "average": {"kind": "best", "n": 2}}
    )

    assert steps(run) == [6, 3, 2]  # the newest, and the two best
    expected = average_tensors(run, 2, 3) if better else average_tensors(run, 2)
    torch.testing.assert_close(load_file(run / "model.safetensors"), expected)


def test_mean_of_the_last_without_validation(fit):
    data = {"train": small.COPY["train"]}

    run = fit(**{**STEPS, "average": {"kind": "last", "n": 2}}, data=data)

    torch.testing.assert_close(load_file(run / "model.safetensors"), average_tensors(run, 4, 6))
    assert "no scores" in (run / "card.md").read_text()


def test_card_and_weights_agree_after_a_mean_that_was_better_before(fit, monkeypatch):
    losses = iter([3.0, 1.0, 2.0, 0.5, 4.0, 9.0])  # three steps and their mean; one more step and the mean then
    for module in (validate, small.finish):
        monkeypatch.setattr(module, "evaluate_weights", lambda s, weights: {"loss": next(losses)})
    settings = {**STEPS, "steps": 3, "valid_every": 1, "average": {"kind": "best", "n": 2}}
    run = fit(**settings)
    assert "mean of the weights of steps 2, 3" in (run / "card.md").read_text()

    fit(resume=True, overrides=["train.steps=4"])

    torch.testing.assert_close(load_file(run / "model.safetensors"), average_tensors(run, 2), rtol=0, atol=0)
    card = (run / "card.md").read_text()
    assert "* weights: weights of step 2\n" in card and "| loss | 1 |" in card


def test_a_mean_where_no_single_step_was_validated_is_measured_and_used(fit, monkeypatch):
    monkeypatch.setattr(loop, "is_interrupted", lambda s, interrupts: s.progress.step == 4)
    with pytest.raises(Interrupted):
        fit(**{**STEPS, "valid_every": 99, "average": {"kind": "last", "n": 2}})

    run = fit(resume=True, overrides=["train.steps=4"])

    torch.testing.assert_close(load_file(run / "model.safetensors"), average_tensors(run, 2, 4))
    assert "| loss |" in (run / "card.md").read_text()
