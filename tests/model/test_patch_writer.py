"""Reconstruction of masked patches."""

import torch

from saccade.config.load import load
from saccade.data.batching.batch import Pictures
from saccade.model.build.model import build
from saccade.model.writers.patches import PatchWriter, compute_patch_errors

SMALL = ["reader.size=12", "reader.stack={layers=1, dim=12, heads=3, ff=17}"]


def pictures(count):
    return Pictures(torch.randint(0, 256, (count, 3, 12, 12), dtype=torch.uint8), torch.ones(count, 10).bool())


def test_targets_of_a_patch_are_its_normalized_pixels():
    writer, values = PatchWriter(5, patch=4), pictures(2).values
    plain, apart = (writer.compute_targets(values, normalize_pixels=normalised) for normalised in (False, True))
    torch.testing.assert_close(plain[1, 5], (values[1, :, 4:8, 8:12].float() / 127.5 - 1).flatten())
    torch.testing.assert_close(apart.mean(-1), torch.zeros(2, 9), atol=1e-5, rtol=0)
    torch.testing.assert_close(apart.var(-1), torch.ones(2, 9), atol=1e-4, rtol=0)


def test_a_patch_of_one_colour_has_finite_targets():
    flat = torch.full((1, 3, 4, 4), 200, dtype=torch.uint8)
    assert PatchWriter(5, patch=4).compute_targets(flat, normalize_pixels=True).abs().max() < 1e-3


def test_visible_patches_and_padding_have_no_loss():
    model = build(load("vit-masked", overrides=SMALL), source_size=9, target_size=9).eval()
    given = pictures(3)
    filled = Pictures(given.values, torch.tensor([[True], [True], [False]]).expand(3, 10))
    found = compute_patch_errors(model, filled, torch.Generator().manual_seed(1), mask_ratio=0.5, normalize_pixels=True)
    assert found.is_masked.sum(1).tolist() == [4, 4, 0]
    assert found.squared_errors.shape == (3, 9)
    compute_patch_errors(
        model, given, torch.Generator(), mask_ratio=0.5, normalize_pixels=True
    ).squared_errors.sum().backward()
    assert model.writer.output.weight.grad.abs().sum() > 0
    assert model.reader.cells.project.weight.grad.abs().sum() > 0
