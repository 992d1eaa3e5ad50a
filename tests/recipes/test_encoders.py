"""Recipes of encoders have the size of the published models."""

import pytest

from saccade.config.load import load
from saccade.plan.counts import on_meta, parameters


@pytest.mark.parametrize(
    ("name", "count"),
    [("bert", 110_106_428), ("bert-large", 336_226_108), ("roberta", 124_695_897), ("albert", 11_813_810)],
)
def test_encoders_have_the_parameters_of_the_released_ones(name: str, count: int) -> None:
    """As `transformers` counts them, pretraining heads included; RoBERTa without two rows of positions for padding."""
    assert parameters(on_meta(load(name))) == count
