"""The page of a navigation task: the map of the world follows the steps."""

import pytest

from saccade_worlds.navigation.route_map import Route

ROUTE = Route(
    {(0, 0): "<i>chair</i>", (1, 0): "", (1, 1): "lamp"},
    {((0, 0), (1, 0)): "blue", ((1, 0), (1, 1)): "octagon"},
    [(0, 0, 90), (1, 0, 90), (1, 0, 90), (1, 0, 180)],  # the second step runs into a wall
)
LABELS = {
    "source": ["walk", "on"],
    "target": ["forward", "forward", "right", "stop", "<end>"],
    "seen": ["<start>", "forward", "forward", "right", "stop"],
}


def open_walk(open_page, make_document, **window):
    document = make_document(parts=("cross",), layers=1, heads=1, labels=LABELS)
    return open_page({**document, "route": ROUTE.to_dict()}, **window)


def test_a_walk_opens_with_its_map(open_page, make_document):
    panel = open_walk(open_page, make_document).get_by_role("tabpanel", name="Steps")
    world = panel.locator(".world")
    assert world.locator(".item").all_text_contents() == ["<i>chair</i>", "lamp"]
    assert world.locator(".step").all_text_contents() == ["1", "2 3", "4"]
    assert [way.get_attribute("stroke") for way in world.locator(".way").all()] == [*ROUTE.colours.values()]
    assert panel.get_by_role("list", name="Floors").get_by_role("listitem").all_inner_texts() == ["blue", "octagon"]
    words, place = panel.locator(".stage").bounding_box(), world.bounding_box()
    assert place["x"] > words["x"] + words["width"]  # beside the attention


def test_each_step_shows_where_it_is_done(open_page, make_document):
    page = open_walk(open_page, make_document)
    world = page.locator(".world")
    seen = []
    for _ in LABELS["target"]:
        here = world.locator(".here")
        place = tuple(int(here.get_attribute(name)) for name in ("cx", "cy"))
        now, coming = (world.locator(f".pose.{name}").all_text_contents() for name in ("now", "future"))
        seen.append((place, now, coming, page.locator(".route .hint").inner_text()))
        page.get_by_role("button", name="Next step").click()
    assert seen == [
        ((0, 0), ["1"], ["2 3", "4"], "Stands at 0,0 and faces right."),
        ((60, 0), ["2 3"], ["4"], "Stands at 1,0 and faces right."),
        ((60, 0), ["2 3"], ["4"], "Stands at 1,0 and faces right."),
        ((60, 0), ["4"], [], "Stands at 1,0 and faces down."),
        ((60, 0), ["4"], [], "Stands at 1,0 and faces down."),
    ]
    assert world.get_attribute("aria-label").endswith("Step 5: stands at 1,0 and faces down")


def test_a_map_fits_a_phone_in_dark(open_page, make_document):
    page = open_walk(open_page, make_document, width=360, height=740, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    world, stage = page.locator(".world").bounding_box(), page.locator(".stage").bounding_box()
    assert world["y"] > stage["y"] + stage["height"]
    assert world["width"] <= 360
    ink = page.locator(".world .item").first.evaluate("text => getComputedStyle(text).fill")
    assert ink == "rgb(233, 231, 226)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_map(open_page, make_document, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(open_walk(open_page, make_document, scheme=scheme)).response["violations"]
    assert [one["id"] for one in found] == []


def test_pages_without_a_route_have_no_map(open_page, make_document):
    page = open_page(make_document())
    page.get_by_role("tab", name="Steps").click()
    assert page.locator(".world").count() == 0
