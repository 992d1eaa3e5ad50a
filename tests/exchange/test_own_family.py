"""A Hugging Face architecture of one's own; docs/adding-a-family.md compares one with transformers."""

from dataclasses import replace
from typing import Any

import pytest

from saccade.config.load import load
from saccade.config.plugins import Kinds
from saccade.errors import SaccadeError
from saccade.exchange.families import catalogue
from saccade.exchange.families.catalogue import find_family, get_family
from saccade.exchange.families.family import Config
from saccade.exchange.families.gpt2 import GPT2
from saccade.exchange.families.t5 import T5

MINE = replace(GPT2, name="mine", architecture="MineForCausalLM", other_architectures=())


def test_an_own_family_is_found_by_model_type_and_by_recipe() -> None:
    assert get_family(Config({"model_type": "mine"}), Kinds({"mine": MINE})) is MINE
    settings = ["name=mine", "task=language-model"]
    assert find_family(load("gpt2", overrides=settings, kinds={"mine": MINE})) is MINE
    assert find_family(load("gpt2", kinds={"mine": MINE})) is GPT2
    assert find_family(load("gpt2", overrides=settings)) is GPT2


def test_installed_families_are_loaded_only_if_no_other_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_installed() -> Any:
        loaded.append(True)
        return {"mine": (MINE, None), "other": (print, None)}

    loaded: list[bool] = []
    monkeypatch.setattr(catalogue, "load_installed", load_installed)
    recipe = load("gpt2")
    assert (find_family(recipe), loaded) == (GPT2, [])
    monkeypatch.setattr(catalogue, "FAMILIES", {"t5": T5})
    assert (find_family(recipe), loaded) == (MINE, [True])


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({}, r"unknown model_type = 'mine'; expected one of albert, .*; your own: --plugin FILE.py, or kinds="),
        ({"mine": print}, "unknown model_type = 'mine'"),
        ({"other": MINE}, r"kinds=\{'other': ...\} is a family with the name 'mine'; use that name"),
        ({"gpt2": GPT2}, "'gpt2' is a family of saccade already; give yours another name"),
    ],
)
def test_a_family_that_cannot_be_used_is_one_line(kinds: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message) as error:
        get_family(Config({"model_type": "mine"}), Kinds(kinds))
    assert "\n" not in str(error.value)
