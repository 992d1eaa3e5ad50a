"""Hidden patches, drawn again."""

import torch

from saccade.config.load import load
from saccade.data.batching.batch import Pictures
from saccade.model.build.model import build
from saccade.model.writers.patches import PatchWriter, missed_patches

SMALL = ["reader.size=12", "reader.stack={layers=1, dim=12, heads=3, ff=17}"]


def pictures(count):
    return Pictures(torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8), torch.ones(count, 10).bool())


def test_what_is_wanted_of_a_patch_is_how_its_pixels_differ():
    writer, values = PatchWriter(5, patch=4), pictures(2).values
    plain, apart = (writer.wanted(values, normalised=normalised) for normalised in (False, True))
    torch.testing.assert_close(plain[1, 5], (values[1, :, 4:8, 8:12].float() / 127.5 - 1).flatten())
    torch.testing.assert_close(apart.mean(-1), torch.zeros(2, 9), atol=1e-5, rtol=0)
    torch.testing.assert_close(apart.var(-1), torch.ones(2, 9), atol=1e-4, rtol=0)


def test_a_patch_of_one_colour_is_no_number_divided_by_nothing():
    flat = torch.full((1, 3, 4, 4), 200, dtype=torch.uint8)
    assert PatchWriter(5, patch=4).wanted(flat, normalised=True).abs().max() < 1e-3


def test_nothing_is_learned_from_patches_that_are_shown_or_fill_up_a_batch():
    model = build(load("vit-masked", overrides=SMALL), source_size=9, target_size=9).eval()
    given = pictures(3)
    filled = Pictures(given.values, torch.tensor([[True], [True], [False]]).expand(3, 10))
    found = missed_patches(model, filled, torch.Generator().manual_seed(1), hidden=0.5, normalised=True)
    assert found.hidden.sum(1).tolist() == [4, 4, 0]
    assert found.squares.shape == (3, 9)
    missed_patches(model, given, torch.Generator(), hidden=0.5, normalised=True).squares.sum().backward()
    assert model.writer.output.weight.grad.abs().sum() > 0
    assert model.reader.cells.project.weight.grad.abs().sum() > 0
