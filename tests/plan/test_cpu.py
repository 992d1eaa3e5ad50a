"""The time of training on the CPU of this machine: measured steps, scaled to the batch of the recipe."""

import json

import pytest

import saccade
from saccade.errors import SaccadeError
from saccade.plan import api, cpu
from saccade.plan.show import build_cpu_rows, format_cpu_title

SMALL = "layers=1,dim=16,heads=2,ff=16"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(cpu, "STEP_SECONDS", 0.02)
    monkeypatch.setattr(cpu, "NUM_STEPS", 1)


@pytest.mark.parametrize("name", ["dates", "vit"])
def test_the_data_of_a_recipe_is_used_if_it_is_there(name, capsys):
    plan = saccade.plan(name, tiny=True, gpu="cpu", overrides=["train.batch_tokens=64", "data.train.0.examples=50"])
    assert plan.cpu.measured_tokens is not None and plan.cpu.step_seconds > 0
    assert plan.cpu_hours == pytest.approx(plan.recipe.train.steps * plan.cpu.step_seconds / 3600)
    assert " is now " not in capsys.readouterr().err  # a note about an old key that the user has not given


CASES = {"multi30k": ("reader", "writer"), "gpt2": ("writer",), "t5": ("reader", "writer"), "tag": ("reader",)}


@pytest.mark.parametrize("name", CASES)
def test_without_data_steps_are_measured_on_generated_sequences(name):
    changes = [f"{part}.stack.{item}" for part in CASES[name] for item in SMALL.split(",")]
    changes += ["train.batch_tokens=640", "train.precision=fp32"]
    plan = saccade.plan(name, gpu="cpu", vocabulary=300, length=16, overrides=changes)
    assert plan.cpu.measured_tokens is not None and plan.cpu.step_seconds > 0
    assert json.loads(json.dumps(plan.as_dict()))["cpu"]["measured_tokens"] == plan.cpu.measured_tokens


def test_the_time_of_a_full_step_is_extrapolated_from_two_sizes(monkeypatch):
    """A step takes 1 s and 0.1 s a token here, so one of 640 tokens 65 s, and two micro-batches twice that."""
    monkeypatch.setattr(cpu, "time_steps", lambda session, count: 1 + 0.1 * session.recipe.train.batch_tokens)
    monkeypatch.setattr(cpu, "measure_matmul_flops", lambda: 1e12)
    changes = ["train.batch_tokens=640", "train.accumulate=2", "data.train.0.examples=50"]
    plan = saccade.plan("dates", tiny=True, gpu="cpu", length=10, overrides=changes)
    assert plan.cpu.measured_tokens < 640
    assert plan.cpu.step_seconds == pytest.approx(2 * (1 + 64))


def test_large_models_are_estimated_and_recipes_for_a_cpu_are_named(monkeypatch):
    monkeypatch.setattr(cpu, "measure_matmul_flops", lambda: 1e11)
    plan = saccade.plan("gpt2-xl", gpu="cpu")
    assert plan.cpu.measured_tokens is None
    flops = plan.time.flops_per_token * plan.step_tokens
    assert plan.cpu.step_seconds == pytest.approx(flops / 0.6e11)
    assert "estimated from the speed of a large matrix product" in format_cpu_title(plan.cpu)
    [training] = [row for row in build_cpu_rows(plan, plan.cpu) if row[0] == "training"]
    assert training[1].endswith("days") and training[2] == "the recipe shakespeare is made for a CPU"


def test_steps_are_measured_without_a_gpu_and_unless_another_is_named(monkeypatch):
    measured = []
    monkeypatch.setattr(api, "add_cpu_speed", lambda plan, run: measured.append(plan.gpu.name) or plan)
    for has_gpu, options, count in (
        (False, {}, 1), (True, {}, 0), (False, {"gpu": "A100"}, 0), (True, {"gpu": "cpu"}, 1), (False, {"gpus": 2}, 0),
    ):  # fmt: skip
        measured.clear()
        monkeypatch.setattr(api.torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        saccade.plan("dates", **options)
        assert len(measured) == count, options
    with pytest.raises(SaccadeError, match="unknown GPU 'x'"):
        saccade.plan("dates", gpu="x")
