"""The page of a walk: the map of its world goes along with the steps."""

import pytest

from saccade.view.route import Route

ROUTE = Route(
    {(0, 0): "<i>chair</i>", (1, 0): "", (1, 1): "lamp"},
    {((0, 0), (1, 0)): "blue", ((1, 0), (1, 1)): "octagon"},
    [(0, 0, 90), (1, 0, 90), (1, 0, 90), (1, 0, 180)],  # the second step goes against a wall
)
LABELS = {
    "source": ["walk", "on"],
    "target": ["forward", "forward", "right", "stop", "<end>"],
    "seen": ["<start>", "forward", "forward", "right", "stop"],
}


def opened_walk(opened, made, **window):
    document = made(parts=("cross",), layers=1, heads=1, labels=LABELS)
    return opened({**document, "route": ROUTE.described()}, **window)


def test_a_walk_opens_with_its_map(opened, made):
    panel = opened_walk(opened, made).get_by_role("tabpanel", name="Steps")
    world = panel.locator(".world")
    assert world.locator(".item").all_text_contents() == ["<i>chair</i>", "lamp"]
    assert world.locator(".step").all_text_contents() == ["1", "2 3", "4"]
    assert [way.get_attribute("stroke") for way in world.locator(".way").all()] == [*ROUTE.colours.values()]
    assert panel.get_by_role("list", name="Floors").get_by_role("listitem").all_inner_texts() == ["blue", "octagon"]
    words, place = panel.locator(".stage").bounding_box(), world.bounding_box()
    assert place["x"] > words["x"] + words["width"]  # beside what is looked at


def test_each_step_shows_where_it_is_done(opened, made):
    page = opened_walk(opened, made)
    world = page.locator(".world")
    seen = []
    for _ in LABELS["target"]:
        here = world.locator(".here")
        place = tuple(int(here.get_attribute(name)) for name in ("cx", "cy"))
        now, coming = (world.locator(f".pose.{name}").all_text_contents() for name in ("now", "future"))
        seen.append((place, now, coming, page.locator(".route .hint").inner_text()))
        page.get_by_role("button", name="Step on").click()
    assert seen == [
        ((0, 0), ["1"], ["2 3", "4"], "Stands at 0,0 and looks right."),
        ((60, 0), ["2 3"], ["4"], "Stands at 1,0 and looks right."),
        ((60, 0), ["2 3"], ["4"], "Stands at 1,0 and looks right."),
        ((60, 0), ["4"], [], "Stands at 1,0 and looks down."),
        ((60, 0), ["4"], [], "Stands at 1,0 and looks down."),
    ]
    assert world.get_attribute("aria-label").endswith("Step 5: stands at 1,0 and looks down")


def test_a_map_fits_a_phone_in_dark(opened, made):
    page = opened_walk(opened, made, width=360, height=740, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    world, stage = page.locator(".world").bounding_box(), page.locator(".stage").bounding_box()
    assert world["y"] > stage["y"] + stage["height"]
    assert world["width"] <= 360
    ink = page.locator(".world .item").first.evaluate("text => getComputedStyle(text).fill")
    assert ink == "rgb(233, 231, 226)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_map(opened, made, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(opened_walk(opened, made, scheme=scheme)).response["violations"]
    assert [one["id"] for one in found] == []


def test_pages_without_a_route_have_no_map(opened, made):
    page = opened(made())
    page.get_by_role("tab", name="Steps").click()
    assert page.locator(".world").count() == 0
