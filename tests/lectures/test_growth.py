"""The scaling table."""

from saccade.config.load import load
from saccade.lectures import tables
from saccade.lectures.scale.growth import compute_cost, count_model, count_models
from saccade.plan.counts import build_on_meta, count_parameters


def test_parts_add_up():
    for line in count_models():
        assert sum(line.parts.values()) == line.parameters


def test_the_heads_of_pretraining_are_left_out():
    bert = count_model(tables.load_sizes()[2])
    assert bert.size.recipe == "bert"
    assert bert.parts["head"] == 768**2 + 768, "the pooler"
    assert bert.parts["embedding"] == (30522 + 2) * 768, "tokens and segments"
    assert bert.parts["positions"] == 512 * 768


def test_the_cost_of_gopher_follows_from_the_hours_of_its_paper():
    found = compute_cost()
    assert round(found.hours) == 920
    assert round(found.dollars) == 3_768_320
    assert round(found.dollars_of_table) == 3_735_552


def test_the_largest_model_is_built_in_no_time():
    """Megatron-Turing NLG (Smith et al. 2022): 105 layers of 20,480, 530 billion parameters."""
    size = [f"writer.stack.{item}" for item in ("layers=105", "dim=20480", "heads=128", "ff=81920")]
    assert round(count_parameters(build_on_meta(load("gpt3", overrides=size))) / 1e9) == 530
