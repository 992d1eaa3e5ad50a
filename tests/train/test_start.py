"""Weight initialization with one standard deviation, which warm starts override."""

import math
from pathlib import Path

import pytest
import torch

import saccade
from saccade.config.load import load
from saccade.config.schema import Recipe, WeightInit
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.train.transfer.initialization import init_weights

WIDE = ["writer.stack={layers=3, dim=128, heads=4, ff=512}"]  # large enough for a spread to be seen
SHORT = ["train.steps=1", "train.valid_every=1", "train.save_every=1"]


def model_of(recipe: Recipe) -> Model:
    torch.manual_seed(1)
    return build(recipe, source_size=200, target_size=200)


def spreads(model: Model) -> dict[str, float]:
    return {name: float(weight.detach().std()) for name, weight in model.named_parameters()}


def test_normal_initializes_all_matrices_with_one_standard_deviation() -> None:
    model = model_of(load("gpt2", tiny=True, overrides=WIDE))
    init_weights(model, WeightInit(kind="normal", init_std=0.03))
    for name, spread in spreads(model).items():
        if name.endswith("bias") or ".norm." in name:
            assert spread == 0, name
        else:
            assert spread == pytest.approx(0.03, rel=0.05), name


def test_scale_by_depth_shrinks_residual_outputs() -> None:
    model = model_of(load("gpt2", tiny=True, overrides=WIDE))
    init_weights(model, WeightInit(kind="normal", init_std=0.02, scale_by_depth=True))
    found = spreads(model)
    for block in range(3):
        for end in ("self.heads.out", "feedforward.down"):
            assert found[f"writer.stack.blocks.{block}.{end}.weight"] == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
        for other in ("self.project", "feedforward.up"):
            assert found[f"writer.stack.blocks.{block}.{other}.weight"] == pytest.approx(0.02, rel=0.05)


def test_reader_and_writer_count_their_own_sublayers() -> None:
    model = model_of(load("transformer", tiny=True, overrides=["reader.stack.layers=4", "writer.stack.layers=1"]))
    init_weights(model, WeightInit(kind="normal", init_std=0.02, scale_by_depth=True))
    found = spreads(model)
    assert found["reader.stack.blocks.0.feedforward.down.weight"] == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
    assert found["writer.stack.blocks.0.cross.heads.out.weight"] == pytest.approx(0.02 / math.sqrt(3), rel=0.05)


def test_xavier_leaves_weights_as_they_were_built() -> None:
    recipe = load("gpt2", tiny=True)
    model, other = model_of(recipe), model_of(recipe)
    init_weights(model, WeightInit())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_training_starts_by_the_recipe_and_a_warm_start_comes_after_it(tmp_path: Path) -> None:
    small = [
        "train.weight_init={kind='normal', init_std=1e-4}",
        "train.schedule={kind='constant', lr=1e-12, warmup_steps=0}",
        *SHORT,
    ]
    first = saccade.train(load("gpt2", tiny=True, overrides=small), run=tmp_path / "first").model
    assert float(first.writer.embedding.tokens.weight.detach().std()) == pytest.approx(1e-4, rel=0.1)
    other = ["train.weight_init={kind='normal', init_std=1.0}", f"init='{tmp_path / 'first'}'", *small[1:]]
    second = saccade.train(load("gpt2", tiny=True, overrides=other), run=tmp_path / "second").model
    torch.testing.assert_close(second.writer.embedding.tokens.weight, first.writer.embedding.tokens.weight)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3", "megatron", "turing-nlg"])
def test_deep_language_models_start_as_gpt2_did(name: str) -> None:
    assert load(name).train.weight_init == WeightInit(kind="normal", init_std=0.02, scale_by_depth=True)


@pytest.mark.parametrize("name", ["bert", "bert-large", "roberta", "albert", "xlnet", "llama"])
def test_other_pretrained_families_start_by_one_spread(name: str) -> None:
    assert load(name).train.weight_init == WeightInit(kind="normal", init_std=0.02)
