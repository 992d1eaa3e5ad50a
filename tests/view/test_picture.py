import logging
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import font_manager
from PIL import Image

from saccade.errors import SaccadeError
from saccade.view import fonts
from saccade.view.labels import format_pair
from saccade.view.picture import Panel, _choose_panels_per_row, _compute_grid, draw, draw_panels, wrap_title

DATES = [
    "mercredi 5 mai 1994",
    "יום רביעי, 5 במאי 1994",
    "الأربعاء، ٥ مايو ١٩٩٤",
    "5 մայիսի, 1994 թ., չորեքշաբթի",
    "Τετάρτη 5 Μαΐου 1994",
    "среда, 5 мая 1994 г.",
    "ოთხშაბათი, 5 მაისი, 1994",
    "बुधवार, 5 मई 1994",
    "1994年5月5日",
    "วันพุธที่ 5",
    "\u200fe\u0301\U0010fffd👍",
]


def pixels(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("text", DATES)
def test_every_script_is_drawn_without_a_warning(tmp_path, caplog, text):
    columns = [*text, "<end>"]
    with caplog.at_level(logging.WARNING):  # warnings are errors in these tests; matplotlib also logs some
        path = draw(
            np.eye(1, len(columns)),
            rows=["1"],
            columns=columns,
            path=tmp_path / "a.png",
            title=format_pair(text, "1994-05-05"),
        )
    assert pixels(path).shape[1] > 300
    assert not caplog.records


def test_characters_that_no_font_has_are_written_as_codes(monkeypatch):
    monkeypatch.setattr(fonts, "_list_installed", lambda: ())
    families = fonts.find_families(["5月"])
    assert families == ["DejaVu Sans"]
    assert fonts.replace_missing_glyphs("5月", families=families) == "5U+6708"


def test_missing_characters_are_taken_from_other_fonts(monkeypatch):
    known = {"DejaVu Sans": {ord("a")}, "Empty": set(), "Moon": {ord("月")}, "Sun": {ord("月"), ord("日")}}
    monkeypatch.setattr(fonts, "get_code_points", lambda family: frozenset(known[family]))
    monkeypatch.setattr(fonts, "_list_installed", lambda: ("Empty", "Moon", "Sun"))
    assert fonts.find_families(["a"]) == ["DejaVu Sans"]
    assert fonts.find_families(["a月"]) == ["DejaVu Sans", "Moon"]
    assert fonts.find_families(["a月日"]) == ["DejaVu Sans", "Moon", "Sun"]


def test_a_font_that_cannot_be_read_has_no_characters(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("cannot open resource")

    monkeypatch.setattr(font_manager, "get_font", fail)
    assert fonts.get_code_points.__wrapped__("DejaVu Sans") == frozenset()


def test_marks_of_direction_need_no_glyph():
    title = format_pair("אב", "12")
    assert fonts.find_families([title]) == ["DejaVu Sans"]
    assert fonts.replace_missing_glyphs(title, families=["DejaVu Sans"]) == title


def darkest(path) -> tuple[float, float]:
    """Find the darkest blue of an image: (fraction of the width, fraction of the height)."""
    picture = pixels(path)
    blue = picture[:, : int(picture.shape[1] * 0.85)]  # without the colour bar
    rows, columns = np.nonzero(np.abs(blue - np.array([8, 48, 107])).sum(2) < 12)
    return columns.mean() / picture.shape[1], rows.mean() / picture.shape[0]


def test_the_weight_stands_in_its_column_and_row(tmp_path):
    weights = np.zeros((7, 7))
    weights[6, 0] = 1.0
    across, down = darkest(draw(weights, rows=list("abcdefg"), columns=list("abcdefg"), path=tmp_path / "a.png"))
    assert across < 0.3
    assert down > 0.7


def test_source_axis_of_right_to_left_text_starts_at_the_right(tmp_path):
    weights = np.zeros((7, 7))
    weights[0, 0] = 1.0
    across, down = darkest(draw(weights, rows=list("abcdefg"), columns=list("אבגדהוז"), path=tmp_path / "a.png"))
    assert across > 0.6
    assert down < 0.4


def test_panels_may_have_labels_of_their_own(tmp_path):
    panels = [Panel(np.eye(2, 3), rows=["a", "b"], columns=list("xyz")), Panel(np.eye(5), list("abcde"), list("אבגדה"))]
    path = draw_panels(panels, path=tmp_path / "a.png", title="two")
    assert pixels(path).shape[1] > pixels(draw(np.eye(5), rows=[*"abcde"], columns=[*"abcde"], path=path)).shape[1]


def test_svg_is_well_formed_and_the_same_each_time(tmp_path):
    maps = {"head 1": np.eye(3), "head 2": np.eye(3)[::-1]}
    first = draw(maps, rows=list("abc"), columns=["$x$", "日", "א"], path=tmp_path / "a.svg", title="5 $ & <end>")
    again = draw(maps, rows=list("abc"), columns=["$x$", "日", "א"], path=tmp_path / "b.svg", title="5 $ & <end>")
    assert ElementTree.parse(first).getroot().tag.endswith("svg")
    assert first.read_bytes() == again.read_bytes()


def test_dark_theme_has_dark_paper(tmp_path):
    path = draw(np.eye(2), rows=["a", "b"], columns=["c", "d"], path=tmp_path / "a.png", theme="dark")
    assert pixels(path)[1, 1].max() < 40


@pytest.mark.parametrize(("length", "heads"), [(131, 3), (5003, 1), (2, 97)])
def test_a_picture_stays_within_a_size_that_opens(length, heads):
    labels = [f"w{i}" for i in range(length)]
    size = _compute_grid([Panel(np.zeros((length, length)), labels, labels)] * heads).compute_size(title=True)
    assert max(size) < 40  # inches: 6,000 pixels


def test_a_long_label_is_cut(tmp_path):
    short = draw(np.eye(1), rows=["x" * 24], columns=["y"], path=tmp_path / "a.png")
    long = draw(np.eye(1), rows=["x" * 1009], columns=["y"], path=tmp_path / "b.png")
    assert pixels(long).shape == pixels(short).shape


def test_heads_make_a_grid():
    assert [_choose_panels_per_row(n, rows=11, columns=11) for n in (1, 4, 6, 8)] == [1, 2, 3, 4]


def test_title_is_cut_to_two_lines():
    lines = wrap_title("word " * 50, inches=3.2).split("\n")
    assert len(lines) == 2
    assert lines[1].endswith("…")


def test_user_settings_of_matplotlib_are_left_alone(tmp_path):
    import matplotlib

    before = matplotlib.rcParams["font.family"]
    draw(np.eye(2), rows=["a", "b"], columns=["c", "月"], path=tmp_path / "a.png")
    assert matplotlib.rcParams["font.family"] == before


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(SaccadeError, match=r"must end in \.png or \.svg, got 'a\.jpg'"):
        draw(np.eye(2), rows=["a", "b"], columns=["c", "d"], path=tmp_path / "a.jpg")


def test_unknown_theme_is_refused(tmp_path):
    with pytest.raises(SaccadeError, match="theme must be one of light, dark, got 'blue'"):
        draw(np.eye(2), rows=["a", "b"], columns=["c", "d"], path=tmp_path / "a.png", theme="blue")


def test_no_maps_are_refused(tmp_path):
    with pytest.raises(SaccadeError, match="at least one map"):
        draw({}, rows=["a"], columns=["b"], path=tmp_path / "a.png")


def test_map_of_the_wrong_shape_is_named(tmp_path):
    with pytest.raises(SaccadeError, match=r"head 2 must be .* = \(2, 2\).*got \(3, 3\)"):
        draw({"head 1": np.eye(2), "head 2": np.eye(3)}, rows=["a", "b"], columns=["c", "d"], path=tmp_path / "a.png")


def test_unwritable_place_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaccadeError, match="cannot write"):
        draw(np.eye(2), rows=["a", "b"], columns=["c", "d"], path=tmp_path / "file" / "a.png")
