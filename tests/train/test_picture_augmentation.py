"""Augmentation of pictures: random for each picture, reproducible by the seed."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from saccade.config.schema import ImageAugmentation
from saccade.train.augment.pictures import (
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    GREY,
    MAX_ASPECT,
    MAX_ERASED,
    MIN_ERASED,
    POSTERIZE,
    ROTATE,
    SHEAR_Y,
    SOLARIZE,
    TRANSLATE_X,
    apply_color_operation,
    apply_geometric_operation,
    augment_pictures,
    crop_randomly,
    erase_rectangles,
)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def pictures(count=5, high=6, wide=8):
    return torch.randint(0, 256, (count, 3, high, wide), generator=generator(0)).float()


def test_nothing_is_changed_where_nothing_is_asked():
    x = pictures()
    assert torch.equal(augment_pictures(x, ImageAugmentation(), generator()), x)


def test_the_same_seed_changes_in_the_same_way():
    settings = ImageAugmentation(flip=0.5, crop=2, num_ops=2, magnitude=0.9)
    first, again, other = (augment_pictures(pictures(), settings, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.min() >= 0
    assert first.max() <= 255


def test_some_are_mirrored():
    x = pictures(200)
    changed = augment_pictures(x, ImageAugmentation(flip=0.25), generator())
    mirrored = (changed == x.flip(-1)).all(3).all(2).all(1)
    assert torch.equal(changed[~mirrored], x[~mirrored])
    assert 25 < int(mirrored.sum()) < 75


def test_pictures_move_by_at_most_so_many_pixels():
    x = pictures(100)
    found = crop_randomly(x, 2, generator())
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), value=GREY)
    places = set()
    for one, wide in zip(found, padded, strict=True):
        here = [(i, j) for i in range(5) for j in range(5) if torch.equal(one, wide[:, i : i + 6, j : j + 8])]
        assert len(here) == 1
        places.add(here[0])
    assert len(places) > 15


@pytest.mark.parametrize("operation", [BRIGHTNESS, CONTRAST, COLOR, POSTERIZE, SOLARIZE])
def test_only_the_pictures_whose_turn_it_is_get_other_colours(operation):
    x, which = pictures(), torch.tensor([operation, 9, 9, operation, 9])
    found = apply_color_operation(x, which, torch.full((5,), 0.8))
    assert torch.equal(found[[1, 2, 4]], x[[1, 2, 4]])
    assert all(not torch.equal(found[i], x[i]) for i in (0, 3))


def test_rectangles_of_some_pictures_become_noise():
    side, x = 40, torch.full((600, 3, 40, 40), -1.0)  # no noise is below 0
    found = erase_rectangles(x, 0.25, generator())
    erased = (found >= 0).all(1)
    assert torch.equal(erased, (found >= 0).any(1)), "all colours of a pixel"
    chosen = erased.any(2).any(1)
    assert 110 < int(chosen.sum()) < 190
    assert torch.equal(found[~chosen], x[~chosen])
    middles, areas, aspects = [], [], []
    for mask in erased[chosen]:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        high, wide = (int(one[-1] - one[0]) + 1 for one in (rows, columns))
        assert int(mask.sum()) == high * wide, "one rectangle"
        middles.append((float(rows.float().mean()), float(columns.float().mean())))
        areas.append(high * wide / side**2)
        aspects.append(high / wide)
    assert MIN_ERASED / 1.5 < min(areas) < 0.06 and 0.27 < max(areas) < 1.15 * MAX_ERASED
    assert 1 / MAX_ASPECT / 1.3 < min(aspects) < 0.5 and 2 < max(aspects) < 1.3 * MAX_ASPECT
    assert all(min(one) < 12 and max(one) > 27 for one in zip(*middles, strict=True)), "anywhere"
    noise = found[found >= 0]
    assert 120 < float(noise.mean()) < 135 and float(noise.min()) < 1 and float(noise.max()) > 254
    assert found[chosen][0].unique().numel() > 50, "every pixel has noise of its own"


def test_erasing_comes_last_and_leaves_the_other_augmentation_as_it_was():
    settings = {"flip": 0.5, "crop": 1, "num_ops": 2}
    without = augment_pictures(pictures(50, 8, 8), ImageAugmentation(**settings), generator())
    found = augment_pictures(pictures(50, 8, 8), ImageAugmentation(**settings, erase=1.0), generator())
    same = (found == without).all(1).float().mean((1, 2))
    assert (same < 1).all() and (same > 0.4).all()
    assert ImageAugmentation(erase=0.1).any and not ImageAugmentation(magnitude=1.0).any


def test_colours_by_hand():
    x = torch.tensor([100.0, 200.0, 30.0]).view(1, 3, 1, 1)

    def by(operation, amount):
        return apply_color_operation(x, torch.tensor([operation]), torch.tensor([amount])).flatten().tolist()

    assert by(BRIGHTNESS, -0.5) == pytest.approx([55.0, 110.0, 16.5])
    assert by(COLOR, -1.0) == pytest.approx([109.0, 119.0, 102.0])  # a tenth of what is not grey is left
    assert by(POSTERIZE, 1.0) == [96, 192, 16]
    assert by(SOLARIZE, 0.5) == [100, 55, 30]


@pytest.mark.parametrize("amount", [-1.0, -0.7, -0.3, 0.0, 0.2, 0.5, 1.0])
def test_colours_are_those_of_pillow(amount):
    """RandAugment is defined by Pillow's operations, and torchvision's agree with them up to rounding."""
    for picture in pictures():
        image = Image.fromarray(picture.permute(1, 2, 0).numpy().astype(np.uint8))
        expected = {
            BRIGHTNESS: ImageEnhance.Brightness(image).enhance(1 + 0.9 * amount),
            POSTERIZE: ImageOps.posterize(image, 8 - round(4 * abs(amount))),
            SOLARIZE: ImageOps.solarize(image, math.ceil(256 * (1 - abs(amount)))),
        }
        for operation, wanted in expected.items():
            found = apply_color_operation(picture[None], torch.tensor([operation]), torch.tensor([amount]))[0]
            close = 1.0 if operation == BRIGHTNESS else 0.0  # Pillow rounds down
            np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), np.asarray(wanted), rtol=0, atol=close)


def test_a_move_shifts_the_picture_and_leaves_grey():
    x = pictures(1, 8, 8)
    found = apply_geometric_operation(x, torch.tensor([TRANSLATE_X]), torch.tensor([0.25 / 0.45]))
    torch.testing.assert_close(found[..., :6], x[..., 2:], atol=1e-3, rtol=0)
    torch.testing.assert_close(found[..., 6:], torch.full((1, 3, 8, 2), GREY))


@pytest.mark.parametrize("operation", [ROTATE, SHEAR_Y])
def test_the_middle_stays_where_it_is(operation):
    x = torch.full((1, 3, 9, 9), GREY)
    x[..., 4, 4] = 255
    found = apply_geometric_operation(x, torch.tensor([operation]), torch.tensor([1.0]))
    torch.testing.assert_close(found[..., 4, 4], x[..., 4, 4], atol=1e-3, rtol=0)
    other = apply_geometric_operation(pictures(1), torch.tensor([operation]), torch.tensor([1.0]))
    assert not torch.allclose(other, pictures(1))
