"""Attention of single cells of a picture."""

from dataclasses import replace

import pytest
import torch

from saccade.config.load import load
from saccade.config.schema import Tokenizer
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizers import train_tokenizers
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade.predict.predictors.media import MediaLabeller, parse_cell, pool_to_grid


def labeller(name, *changes):
    torch.manual_seed(1)
    recipe = load(name, tiny=True, overrides=list(changes))
    tokenizers = replace(train_tokenizers(Tokenizer(kind="bytes"), lambda: ()), labels=Labels("label", ("blue", "red")))
    model = build(recipe, source_size=tokenizers.source.size, target_size=2).eval()
    for module in model.modules():
        if hasattr(module, "gamma"):
            torch.nn.init.ones_(module.gamma)
    return MediaLabeller(model, recipe=recipe, tokenizers=tokenizers)


@pytest.fixture
def picture(tmp_path):
    from PIL import Image

    path = tmp_path / "x.png"
    Image.effect_noise((48, 48), 90).convert("RGB").save(path)
    return str(path)


def test_a_cell_is_named_by_row_and_column():
    assert [parse_cell(text, (3, 4)) for text in ("1,1", " 2, 3 ", "3,4")] == [0, 6, 11]
    for wrong in ("0,1", "4,1", "1,5", "x", "1", "-1,1", "1,1,1"):
        with pytest.raises(SaccadeError, match=r"--target is a cell as ROW,COLUMN, up to 3,4, got"):
            parse_cell(wrong, (3, 4))


def test_attention_of_a_finer_grid_is_pooled_by_cell():
    reader = load("cnn-self-attention", tiny=True, overrides=["reader.size=16"]).reader  # 2 x 2 cells, 4 x 4 before
    weights = torch.rand(1, 16, 16)
    weights /= weights.sum(-1, keepdim=True)
    found = pool_to_grid(weights, reader, (2, 2), cell=1)
    queries = [2, 3, 6, 7]  # the right upper quarter of 4 x 4
    below = weights[0, queries].mean(0).view(4, 4)[2:, :2].sum()
    torch.testing.assert_close(found[0, 0, 2], below)
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 1))
    torch.testing.assert_close(
        pool_to_grid(weights, reader, (2, 2), cell=None)[0, 0],
        torch.stack([pool_to_grid(weights, reader, (2, 2), cell=cell)[0, 0] for cell in range(4)]).mean(0),
    )


def test_class_token_or_given_patch_is_the_query():
    reader, weights = load("vit", tiny=True).reader, torch.rand(2, 37, 37)
    assert torch.equal(pool_to_grid(weights, reader, (6, 6), cell=None), weights[:, :1, 1:])
    assert torch.equal(pool_to_grid(weights, reader, (6, 6), cell=4), weights[:, 5:6, 1:])


@pytest.mark.parametrize("name", ["cnn-self-attention", "vit"])
def test_view_of_one_query_cell(picture, name):
    predictor = labeller(name)
    whole, cell, other = (predictor.view(picture, target) for target in (None, "2,3", "5,1"))
    assert cell.maps[-1].weights.shape == whole.maps[-1].weights.shape
    assert (cell.labels["target"], whole.labels["target"]) == (["from 2,3"], [whole.output])
    assert "from 2,3" in cell.text(width=80)
    assert abs(cell.maps[-1].weights - other.maps[-1].weights).max() > 1e-6
    assert (predictor.view(picture).maps[-1].weights == whole.maps[-1].weights).all()


def test_a_cell_outside_of_the_grid_is_refused(picture):
    with pytest.raises(SaccadeError, match="up to 6,6, got '7,1'"):
        labeller("vit").view(picture, "7,1")
