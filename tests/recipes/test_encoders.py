"""Recipes of encoders have the size of the published models."""

import pytest

from saccade.config.load import load
from saccade.plan.counts import build_on_meta, count_parameters


@pytest.mark.parametrize(
    ("name", "count"),
    [("bert", 110_106_428), ("bert-large", 336_226_108), ("roberta", 124_695_897), ("albert", 11_813_810)],
)
def test_encoders_have_the_parameters_of_the_released_ones(name: str, count: int) -> None:
    """As `transformers` counts them, pretraining heads included; RoBERTa without two rows of positions for padding."""
    assert count_parameters(build_on_meta(load(name))) == count
