"""The scaling table."""

from saccade.config.load import load
from saccade.lectures import tables
from saccade.lectures.scale.growth import count_model, count_models
from saccade.plan.counts import build_on_meta, count_parameters


def test_parts_add_up():
    for line in count_models():
        assert sum(line.parts.values()) == line.parameters


def test_models_that_no_recipe_builds_have_their_parts():
    bert = count_model(tables.load_sizes()[2])
    assert bert.parts["pooler"] == 768**2 + 768
    assert bert.parts["segments"] == 2 * 768
    assert bert.parts["positions"] == 512 * 768


def test_the_largest_model_is_built_in_no_time():
    """Megatron-Turing NLG (Smith et al. 2022): 105 layers of 20,480, 530 billion parameters."""
    size = [f"writer.stack.{item}" for item in ("layers=105", "dim=20480", "heads=128", "ff=81920")]
    assert round(count_parameters(build_on_meta(load("gpt3", overrides=size))) / 1e9) == 530
