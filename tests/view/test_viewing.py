import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from saccade.errors import SaccadeError
from saccade.view.background import Background
from saccade.view.maps import AttentionMap
from saccade.view.viewing import View
from saccade_worlds.navigation.route_map import Route

LABELS = {
    "source": ["␣do", "gs", "␣run", "<end>"],
    "target": ["␣lau", "fen", "<end>"],
    "seen": ["<start>", "␣lau", "fen"],
}
WORDS = {"source": [[0, 1], [2], [3]], "target": [[0, 1], [2]], "seen": [[0], [1, 2]]}
SIDES = {"cross": ("target", "source"), "writer": ("target", "seen"), "reader": ("source", "source")}


def attention(part: str, layer: int, *, seed: int = 0) -> AttentionMap:
    rows, columns = SIDES[part]
    random = np.random.default_rng([layer, seed, *map(ord, part)])
    weights = random.dirichlet(np.ones(len(LABELS[columns])), (2, len(LABELS[rows])))
    return AttentionMap(f"{part}.{layer}", part, layer, weights.astype(np.float32), rows, columns, LABELS)


def make(*, seed: int = 0, title: str = "one") -> View:
    maps = [attention(part, layer, seed=seed) for part in ("reader", "writer", "cross") for layer in (1, 2)]
    return View(title, "dogs run", "laufen", LABELS, maps, words=WORDS, steps=[{"token": "␣lau"}])


def lines(view: View, **choice) -> list[str]:
    return view.text(width=60, **choice).splitlines()


def test_the_terminal_shows_the_mean_of_the_last_layer():
    first, _, name, *_ = lines(make())
    assert (first, name) == ("laufen", "cross.2, mean of 2 heads")


def test_an_output_does_not_steer_the_terminal():
    view = replace(make(), output="\x1b[31mred\x07\tand\nmore")
    assert view.text(width=60).startswith("U+001B[31mredU+0007\tand\nmore\n")
    assert view.document()["output"] == view.output


def test_a_choice_is_shown():
    assert lines(make(), part="reader", layer=1, head=2)[2] == "reader.1, head 2"


def test_words_are_joined():
    text = lines(make(), words=True)
    assert [line.split()[0] for line in text[3:] if line[:6].strip()] == ["laufen", "<end>"]


def test_words_without_groups_are_tokens():
    view = View("one", "a", "b", LABELS, make().maps)
    assert [line.split()[0] for line in lines(view, words=True)[-5:-2]] == ["lau", "fen", "<end>"]


def test_a_language_model_shows_its_prompt_too():
    labels = {**LABELS, "source": []}
    assert lines(View("one", "do", "gs", labels, [attention("writer", 1)]))[0] == "dogs"


def test_two_views_stand_one_below_the_other():
    text = make().beside(make(seed=1, title="two")).text(width=60)
    assert [line for line in text.splitlines() if line.endswith("laufen")] == ["one: laufen", "two: laufen"]


def test_only_what_is_chosen_stays():
    addresses = {
        (None, None): ["reader.1", "reader.2", "writer.1", "writer.2", "cross.1", "cross.2"],
        ("writer", None): ["writer.1", "writer.2"],
        (None, 1): ["cross.1"],
        ("reader", 2): ["reader.2"],
    }
    for (part, layer), wanted in addresses.items():
        assert [entry.address for entry in make().only(part=part, layer=layer).maps] == wanted
    assert {entry.heads for entry in make().only(head=2).maps} == {1}
    both = make().beside(make(title="two")).only(part="cross", layer=1)
    assert [entry.address for entry in both.other.maps] == ["cross.1"]


def test_json_is_the_document():
    view = make().beside(make(seed=1, title="two"))
    found = json.loads(view.json())
    assert found == view.document()
    assert (found["title"], found["other"]["title"]) == ("one", "two")
    np.testing.assert_allclose(found["maps"][5]["weights"], view.maps[5].weights, atol=1e-7)


@pytest.mark.parametrize("name", ["a.html", "b/a.json", "a.png", "A.SVG"])
def test_it_is_saved_by_the_name(tmp_path, name):
    path = make().save(tmp_path / name, words=True)
    assert path == tmp_path / name
    assert path.stat().st_size > 1000


def test_a_saved_page_is_the_page(tmp_path):
    page = make().save(tmp_path / "a.html").read_text("utf-8")
    assert page == make().html()
    assert page.startswith("<!doctype html>")


def test_a_saved_choice_is_all_there_is(tmp_path):
    found = json.loads(make().save(tmp_path / "a.json", part="reader", layer=1, head=2).read_text("utf-8"))
    assert [(entry["address"], entry["heads"]) for entry in found["maps"]] == [("reader.1", 1)]


def test_a_picture_of_two_has_twice_the_panels(tmp_path):
    def width(view: View, **choice) -> int:
        with Image.open(view.save(tmp_path / "a.png", **choice)) as image:
            return image.size[0] * image.size[1]

    one = width(make(), head=1)
    assert width(make().beside(make(seed=1)), head=1) > 1.2 * one


def test_views_of_unequal_depth_are_compared_by_their_last_layers(tmp_path):
    shallow = View("two", "dogs run", "laufen", LABELS, [attention("cross", 1)])
    both = make().beside(shallow)
    assert both.save(tmp_path / "a.png", head=1).exists()
    assert "cross.2, head 1" in both.text(head=1) and "cross.1, head 1" in both.text(head=1)
    with pytest.raises(SaccadeError, match="--layer must be at most 1, got 2"):
        both.save(tmp_path / "a.png", layer=2)


def test_a_view_with_a_picture_behind_is_drawn_over_it(tmp_path):
    background = Background.of(np.full((40, 60), 200), (2, 2))
    view = View("one", None, "laufen", LABELS, make().maps, background=background)
    assert lines(view)[3] == "␣lau  fen   <en…"
    with Image.open(view.save(tmp_path / "a.png")) as image:
        assert image.size[0] == pytest.approx(4 * 1.9 * 150, abs=2)  # the image and three tokens
    assert "mean of 2 heads" in lines(view, part="writer")[2]  # its columns are not patches
    assert view.document()["background"]["grid"] == [2, 2]


def test_a_notebook_shows_the_page_in_a_frame():
    assert make()._repr_html_().startswith("<iframe")


def test_what_it_is_called():
    assert repr(make()).endswith("\u2068dogs run\u2069 → \u2068laufen\u2069>")
    assert str(make()) == make().text()
    assert str(View("none", "a", "b", LABELS, [])) == "b"


def test_other_names_are_refused(tmp_path):
    with pytest.raises(SaccadeError, match=r"must end in one of \.html, \.json, \.png, \.svg, got 'a\.gif'; rename it"):
        make().save(tmp_path / "a.gif")


@pytest.mark.parametrize("name", ["a.html", "a.json", "a.png"])
def test_an_unwritable_place_is_reported(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaccadeError, match="cannot write"):
        make().save(tmp_path / "file" / name)
    (tmp_path / name).mkdir()
    with pytest.raises(SaccadeError, match="cannot write"):
        make().save(tmp_path / name)


def test_a_route_is_in_the_document_and_only_where_there_is_one():
    route = Route({(0, 0): "chair"}, {}, [(0, 0, 90)])
    assert json.loads(replace(make(), route=route).json())["route"] == route.to_dict()
    assert "route" not in make().document()
