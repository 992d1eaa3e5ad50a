"""A small recipe with overrides, and the model that it describes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch, Tokens, pad
from saccade.model.build.model import build
from saccade.model.model import Model

SMALL = """
[tokenizer]
shared = true
[reader]
stack = { layers = 2, dim = 12, heads = 3, ff = 17 }
[writer]
stack = { layers = 2, dim = 12, heads = 3, ff = 17 }
"""


@pytest.fixture
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recipe]:
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(SMALL)
    return lambda *overrides, **settings: load(path, overrides=overrides, **settings)


@pytest.fixture
def model(recipe: Callable[..., Recipe]) -> Callable[..., Model]:
    def make(*overrides: str, source_size: int = 23, target_size: int = 23, **settings: Any) -> Model:
        made = build(recipe(*overrides, **settings), source_size=source_size, target_size=target_size)
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.3)  # zeros would hide mistakes
        return made.eval()

    return make


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(3)

    def rows(*lengths: int) -> Tokens:
        return pad([torch.randint(4, 23, (n,), generator=generator).tolist() for n in lengths])

    return Batch({"source": rows(7, 4, 1), "target": rows(5, 2, 6)})
