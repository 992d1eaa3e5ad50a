"""A synthetic image of coloured squares on a grid of 2 x 3 patches, and maps that attend to one patch each."""

from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from saccade.errors import SaccadeError
from saccade.view.background import Background
from saccade.view.spotlight import darken_unattended, draw_spotlight, format_grids

GRID = (2, 3)
PIXELS = np.kron(np.arange(40, 240, 33)[:6].reshape(2, 3), np.ones((50, 50))).astype(np.uint8)
MAPS = np.eye(6)[[0, 5]]  # the first row attends to the upper left patch, the second to the lower right one


@pytest.fixture
def background() -> Background:
    return Background.of(PIXELS, GRID)


def test_a_picture_comes_back_as_it_was(background):
    assert background.image.startswith("data:image/png;base64,")
    assert (background.decode_pixels() == PIXELS[..., None]).all()
    assert background.to_dict() == {"columns": "source", "image": background.image, "grid": [2, 3]}


def test_a_picture_from_a_file(tmp_path, background):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    assert Background.of(tmp_path / "a.png", GRID) == background


def test_a_large_picture_is_made_smaller():
    assert Background.of(np.zeros((1009, 2003)), GRID).decode_pixels().shape == (226, 448, 3)


def test_image_is_bright_where_the_token_attends():
    white = np.ones((100, 150, 3))
    first, second = (darken_unattended(white, cells) for cells in Background.of(PIXELS, GRID).to_grid(MAPS))
    assert first[10, 10].min() > 0.95 and first[90, 140].max() < 0.2
    assert second[90, 140].min() > 0.95 and second[10, 10].max() < 0.2


def test_a_map_of_zeros_is_dark():
    assert darken_unattended(np.ones((10, 10, 3)), np.zeros(GRID)).max() == pytest.approx(0.15)


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_picture_for_each_word_and_one_without_light(tmp_path, background, name, theme):
    path = draw_spotlight(
        MAPS, rows=["two", "犬"], background=background, path=tmp_path / name, title="a → b", theme=theme
    )
    if path.suffix == ".svg":
        assert sum(part.tag.endswith("image") for part in ElementTree.parse(path).iter()) == 3
    else:
        pixels = np.asarray(Image.open(path).convert("L")).astype(int)
        assert pixels.shape[1] == pytest.approx(3 * 1.9 * 150, abs=2)
        assert (pixels[1, 1] > 200) == (theme == "light")


def test_the_terminal_shows_a_small_map_for_each_word(background):
    text = format_grids(MAPS, rows=["two", "dogs"], background=background, width=30)
    assert text.splitlines() == ["two     dogs", "██", "            ██", "", "0  ░▒▓█ 1.00"]


def test_maps_that_do_not_fit_go_on_below(background):
    text = format_grids(np.ones((7, 6)), rows=["abcdefgh"] * 7, background=background, width=22)
    assert max(map(len, text.splitlines())) <= 22
    assert text.count("abcde…") == 7


def test_a_spectrogram_has_a_grid_of_one_row():
    sound = Background.of(PIXELS, (1, 6))
    assert format_grids(MAPS, rows=["a", "b"], background=sound, width=30).splitlines()[:2] == [
        "a             b",
        "██" + " " * 22 + "██",
    ]


def test_maps_that_do_not_fit_the_grid_are_refused(background):
    with pytest.raises(SaccadeError, match=r"2 x 3 patches needs maps of 6 columns, got shape \(2, 5\)"):
        format_grids(np.ones((2, 5)), rows=["a", "b"], background=background, width=80)


def test_a_grid_wider_than_the_terminal_is_refused():
    with pytest.raises(SaccadeError, match="a grid of 24 columns needs a terminal of 48 cells, got 40; use --png"):
        format_grids(np.ones((1, 24)), rows=["a"], background=Background.of(PIXELS, (1, 24)), width=40)


def test_what_is_no_picture_is_reported(tmp_path):
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(SaccadeError, match=r"cannot read the image .*a\.png"):
        Background.of(tmp_path / "a.png", GRID)
    with pytest.raises(SaccadeError, match=r"cannot read the image .*b\.png: No such file"):
        Background.of(tmp_path / "b.png", GRID)


def test_each_row_may_have_a_picture_of_its_own(tmp_path):
    pictures = [np.full((4, 6, 3), 20 * number, dtype=np.uint8) for number in range(1, 11)]
    series = Background.of_series(pictures, GRID)
    assert [int(series.decode_pixels(row)[0, 0, 0]) for row in range(10)] == [20 * number for number in range(1, 11)]
    assert series.to_dict()["images"] == list(series.images) and series.image == series.images[0]
    path = draw_spotlight(np.ones((10, 6)), rows=list("abcdefghij"), background=series, path=tmp_path / "a.png")
    with Image.open(path) as drawn:  # rows of five: images, attention, images, attention; each 6 wide and 4 high
        assert drawn.height > drawn.width / 5 * 4 / 6 * 4


def test_where_no_row_is_left_there_is_nothing(tmp_path):
    """Nine images are five and four: the last place of the second row keeps the background color."""
    series = Background.of_series([np.full((6, 6, 3), 250, dtype=np.uint8)] * 9, GRID)
    path = draw_spotlight(
        np.ones((9, 6)), rows=list("abcdefghi"), background=series, path=tmp_path / "a.png", theme="dark"
    )
    drawn = np.asarray(Image.open(path).convert("RGB"))
    high, wide = drawn.shape[:2]
    assert (drawn[high * 9 // 16, wide * 7 // 10] == 250).all()
    assert (drawn[high * 9 // 16 :, wide * 41 // 50 :] == drawn[0, 0]).all()
