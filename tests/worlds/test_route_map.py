"""Plots of a route on the map of its world."""

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade.view.picture import Panel
from saccade_worlds.navigation.route_map import EXTRA_COLOURS, FLOOR_COLOURS, Route
from saccade_worlds.navigation.route_picture import draw_route

ROUTE = Route(
    {(0, 0): "chair", (1, 0): "", (1, 1): "lamp"},
    {((0, 0), (1, 0)): "blue", ((1, 0), (0, 0)): "blue", ((1, 0), (1, 1)): "octagon", ((1, 1), (1, 0)): "octagon"},
    [(0, 0, 90), (1, 0, 90), (1, 0, 180)],
)
PANEL = Panel(np.eye(3, 4), ["forward", "right", "stop"], ["walk", "on", "then", "right"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_items_actions_and_words_are_in_the_picture(theme, tmp_path):
    text = draw_route(PANEL, route=ROUTE, path=tmp_path / "a.svg", title="walk on", theme=theme).read_text()
    for word in ("chair", "lamp", "walk on", "1  forward", "then"):
        assert f"<!-- {word} -->" in text
    assert text.count("<!-- 3 -->") == 1  # the number of the last action, on the map


def test_described_has_each_way_once_and_a_colour_for_each_floor():
    assert ROUTE.to_dict() == {
        "items": [[0, 0, "chair"], [1, 0, ""], [1, 1, "lamp"]],
        "ways": [[0, 0, 1, 0, "blue"], [1, 0, 1, 1, "octagon"]],
        "poses": [[0, 0, 90], [1, 0, 90], [1, 0, 180]],
        "colours": {"blue": FLOOR_COLOURS["blue"], "octagon": EXTRA_COLOURS[0]},
    }


def test_other_floors_have_colours_in_turn():
    floors = ["a", "b", "wood"]
    route = Route({}, {((0, n), (1, n)): floor for n, floor in enumerate(floors)}, [])
    assert route.colours == {"a": EXTRA_COLOURS[0], "b": EXTRA_COLOURS[1], "wood": FLOOR_COLOURS["wood"]}


def test_weights_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(SaccadeError, match="weights"):
        draw_route(Panel(np.eye(3), PANEL.rows, PANEL.columns), route=ROUTE, path=tmp_path / "a.png")
