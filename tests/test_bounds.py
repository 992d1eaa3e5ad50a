"""Bounds of what a recipe or an override may ask for, before anything is allocated."""

import pytest

from saccade import bounds
from saccade.config.load import load, validate
from saccade.errors import SaccadeError

DIGITS, LONG = "9" * 5000, "9" * 30


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            f"train.steps={DIGITS}",
            r"the value '999.*\.\.\.' has a whole number that is too large",
        ),
        (f"train.steps={LONG}", f"the value '{LONG}' has a whole number that is too large"),
        (
            f"train.steps={'[' * 5000}",
            "the value .* is nested too deeply, expected at most 32 levels; write it",
        ),
        (f"train.steps={'[' * 40}{']' * 40}", "the value .* is nested too deeply"),
        (f"data={'{a=' * 500}1{'}' * 500}", "the value .* is nested too deeply"),
        (f"{'.'.join('a' * 3000)}=1", r"override 'a\.a.*\.\.\.' is nested too deeply"),
        ("objectives.²=1", "objectives: expected a list, got {'²': 1}"),
        ("objectives.٣=1", "objectives: expected a list, got"),
        (f"objectives.{LONG}=1", "objectives: expected a list, got"),
        ("objectives.7.alpha=1", "objectives.7: the list has 1 items, counted from 0"),
        ("reader.stack.layers=1000000", "reader.stack.layers: expected at most 10000, got 1000000"),
        ("data.max_length=10000000000", "data.max_length: expected at most 1000000000, got 10000000000"),
        ("predict.beam=400000", "predict.beam: expected at most 10000, got 400000"),
        ("predict.iterations=400000", "predict.iterations: expected at most 10000, got 400000"),
    ],
)
def test_an_override_beyond_the_bounds_is_one_line(override, message):
    with pytest.raises(SaccadeError, match=message) as caught:
        load("dates", overrides=[override])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_a_dilation_is_at_most_the_length_of_a_sequence(side):
    message = rf"{side}.stack.dilations: 1000000000 is more than data.max_length = 256, .*; lower it"
    with pytest.raises(SaccadeError, match=message):
        load("bytenet", overrides=[f"{side}.stack.dilations=[1, 1000000000]"])
    load("bytenet", overrides=[f"{side}.stack.dilations=[256]"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=" + "[" * 100_000, "recipe file '.*' is nested too deeply"),
        (".".join("a" * 100_000) + "=1", "recipe file '.*' is nested too deeply"),
        ("name=" + DIGITS, "recipe file '.*' has a whole number that is too large"),
        ("x" * 1_000_001, "recipe file '.*' has more than 1,000,000 characters; is it a recipe?"),
        ("a=[[", "recipe file '.*' is not valid TOML"),
    ],
)
def test_a_recipe_file_beyond_the_bounds_is_one_line(tmp_path, text, message):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(SaccadeError, match=message):
        load(tmp_path / "x.toml")


def test_values_from_python_have_the_same_bounds():
    nested: list = []
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(SaccadeError, match="recipe is nested too deeply"):
        validate({"data": nested})
    with pytest.raises(SaccadeError, match="recipe has a whole number that is too large"):
        validate({"train": {"steps": 2**63}})


def test_levels_up_to_the_bound_are_read():
    levels = bounds.MAX_NESTING - 2
    assert bounds.parse_toml(f"a = {'[' * levels}1{']' * levels}", "x")
    with pytest.raises(SaccadeError, match="nested too deeply"):
        bounds.parse_toml(f"a = {'[' * (levels + 2)}1{']' * (levels + 2)}", "x")
