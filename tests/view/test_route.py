"""A route on the map of its world."""

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade.view.picture import Panel
from saccade.view.route import Route
from saccade.view.route_picture import draw_route

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


def test_weights_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(SaccadeError, match="weights"):
        draw_route(Panel(np.eye(3), PANEL.rows, PANEL.columns), route=ROUTE, path=tmp_path / "a.png")
